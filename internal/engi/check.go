package engi

// A Check is the result of checking one property of the host of a node.
type Check struct {
	Name   string
	OK     bool
	Detail string // what was found
	Fix    string // what would make it OK, in one line; empty if OK or impossible
}
