// Package undo takes back the steps of something half done.
package undo

// A Stack has functions that each take back one step. It belongs to one goroutine.
type Stack []func()

// Add adds a function, to be called before those that are there.
func (s *Stack) Add(f func()) { *s = append(*s, f) }

// Keep drops all functions: what they take back has succeeded.
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
