//go:build !linux

package main

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
)

func (g *globals) connectHere(context.Context, where, string) (*connection, error) {
	return nil, engi.Errorf(engi.Invalid, "no server named").
		WithRemedy("sandboxes need Linux: set ENGI_URL and ENGI_KEY to use a server there")
}

func enter([]string) {}

var errLinux = engi.Errorf(engi.Unsupported, "this command works on the machine of the node, which is Linux").
	WithRemedy("run it there")

type (
	serveCommand  struct{}
	statusCommand struct{}
	stopCommand   struct{}
	doctorCommand struct{}
	tlsCommand    struct{}
	secretRekey   struct{}
	benchCommand  struct{}
	configCommand struct{}
)

func (serveCommand) Run() error  { return errLinux }
func (statusCommand) Run() error { return errLinux }
func (stopCommand) Run() error   { return errLinux }
func (doctorCommand) Run() error { return errLinux }
func (tlsCommand) Run() error    { return errLinux }
func (secretRekey) Run() error   { return errLinux }
func (benchCommand) Run() error  { return errLinux }
func (configCommand) Run() error { return errLinux }

func programs(context.Context, *globals) ([]programFacts, error) { return nil, nil }
