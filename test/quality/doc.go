// Package quality measures the quality of searches in the docs: it has questions that were
// written by hand over documents of this repository and of packages that other
// tests install, and counts the questions that find their section among the first five
// hits. It is not for speed, see package docs.
package quality
