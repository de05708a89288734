// Package undo reverts the completed steps of an operation that failed.
package undo

// A Stack holds functions that each revert one step. It belongs to one goroutine.
type Stack []func()

// Add adds a function, which Run calls before the earlier ones.
func (s *Stack) Add(f func()) { *s = append(*s, f) }

// Keep drops all functions, because the operation has succeeded.
func (s *Stack) Keep() { *s = nil }

// Run calls the functions, newest first, and drops them.
func (s *Stack) Run() {
	for len(*s) > 0 {
		last := len(*s) - 1
		f := (*s)[last]
		*s = (*s)[:last]
		f()
	}
}
