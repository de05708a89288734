package intercept

var FormsOf = formsOf
