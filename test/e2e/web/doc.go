// Package web tests the dashboard as people use it: in Chromium, against a node
// with real sandboxes. It checks every page in light, in dark and on a phone,
// with axe, and leaves pictures of them in shots.
package web
