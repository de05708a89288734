// Package preview tests previews in their typical use: a development server
// in a real sandbox, seen by a real browser; and with a service that uses all
// features of HTTP. It needs root, runsc, the base template, Chromium and npm;
// make test provides them.
package preview
