package engi

// A Check is the result of checking one property of the host of a node.
type Check struct {
	Name   string
	OK     bool
	Detail string // result of the check
	Fix    string // command or advice that makes the check pass, in one line; empty if OK or impossible
}
