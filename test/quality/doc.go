// Package quality measures how well the library finds: questions that were
// written by hand over documents of this repository and of packages that other
// tests install, and how many of them find their section among the first five
// hits. It is not for speed, see package docs.
package quality
