// Package v1 is what crosses the wire of engi's HTTP surface, version 1, as
// Go structs: the contract with everybody outside. It imports nothing of the
// house, so that a client needs nothing else, and holds no behaviour beyond
// reading and writing its own values.
package v1
