// Package ide tests editors that run in sandboxes with what they are for: JupyterLab
// in a browser, and for programs that speak its protocol. It needs root, runsc, the
// templates base and jupyterlab, which it builds in CI, Chromium and Node; make test
// provides them.
package ide
