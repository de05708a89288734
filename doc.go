// Package engi is the vocabulary of the house: the nouns, their IDs and
// states, the kinds of error, and the interfaces by which rooms meet. It
// imports the standard library only and does nothing by itself; every other
// package may import it.
package engi
