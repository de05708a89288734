// Package page keeps the pages of sessions, which language models write and change. A
// [Service] has runs of agents answer what users do on pages, and is a projection of
// the log of events: a run goes on, and a reader resumes, wherever the node was
// killed. The pages themselves are in package markup. The service runs no models and
// has no tools itself (package agent), and no protocol for browsers (package rest).
package page
