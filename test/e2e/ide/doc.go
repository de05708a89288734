// Package ide tests editors in sandboxes in their typical use: JupyterLab
// in a browser, and with programs that speak its protocol. It needs root, runsc, the
// templates base and jupyterlab, which it builds in CI, Chromium and Node; make test
// provides them.
package ide
