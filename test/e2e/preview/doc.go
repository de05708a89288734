// Package preview tests previews with what they are for: a development server
// in a real sandbox, seen by a real browser; and with a service that does all
// that HTTP can. It needs root, runsc, the base template, Chromium and npm;
// make test provides them.
package preview
