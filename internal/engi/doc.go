// Package engi is the vocabulary of the program: the types of objects, their IDs and
// states, the kinds of error, and the interfaces of services. Every other package may
// import it; it imports only the standard library and has no behaviour of its own.
//
// A tour of the code is docs/architecture.md.
package engi
