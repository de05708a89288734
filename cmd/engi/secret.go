package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/term"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type secretCommand struct {
	Set    secretSet     `cmd:"" help:"Store a secret, or replace its value."`
	Get    showCommand   `cmd:"" help:"Show a secret without its value."`
	List   listCommand   `cmd:"" aliases:"ls" help:"List secrets without their values."`
	Remove removeCommand `cmd:"" aliases:"rm" help:"Delete secrets."`
	Rekey  secretRekey   `cmd:"" help:"Encrypt all secrets with a new key."`
}

var secretCommands = secretCommand{
	List: lists(example("engi secret list"), table[v1.Secret]{"NAME\tID\tVERSION\tWORDS\tUPDATED", func(x v1.Secret) []any {
		return []any{x.Name, x.ID, x.Version, words(x.Metadata), ago(x.UpdatedAt)}
	}, nil}, (*client.Client).Secrets),
	Get:    shows(example("engi secret get github"), (*globals).showSecret, (*client.Client).Secret),
	Remove: removes(example("engi secret remove github"), "removed", (*client.Client).RemoveSecret),
}

type secretSet struct {
	Name string            `arg:"" help:"Name." placeholder:"NAME"`
	Host []string          `help:"Host to which the secret may be sent: a name or *.SUFFIX, optionally with :PORT; may be repeated (default: as before; every host for a new secret)." placeholder:"HOST"`
	Meta map[string]string `short:"m" help:"Label; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
}

func (secretSet) Help() string {
	return `Reads the value from standard input, without its final newline, or asks for it, because other users
can see command lines.

Examples:
  engi secret set github --host api.github.com
  pass show github | engi secret set github -m for=ci`
}

// maxSecret is the maximum number of bytes of a value; the server has the same limit.
const maxSecret = 64 << 10

func (s *secretSet) Run(ctx context.Context, g *globals) error {
	value, err := g.secretValue(s.Name)
	if err != nil {
		return err
	}
	return show(ctx, g, func(d *connection) (v1.Secret, error) {
		x, err := d.CreateSecret(ctx, v1.SecretRequest{Name: s.Name, Value: value, Metadata: s.Meta, Hosts: s.Host})
		if !client.IsKind(err, v1.Conflict) {
			return x, err
		}
		u := v1.SecretUpdate{Value: value}
		if s.Meta != nil {
			u.Metadata = &s.Meta
		}
		if s.Host != nil {
			u.Hosts = &s.Host
		}
		return d.UpdateSecret(ctx, s.Name, u)
	}, func(x v1.Secret) { g.note("%s is stored, version %d", x.Name, x.Version) })
}

// secretValue reads a value without showing it.
func (g *globals) secretValue(name string) (string, error) {
	var value []byte
	var err error
	if fd := int(g.in.Fd()); term.IsTerminal(fd) {
		fmt.Fprintf(g.err, "value of %s: ", name)
		value, err = term.ReadPassword(fd)
		fmt.Fprintln(g.err)
		if err != nil {
			err = engi.Errorf(engi.Invalid, "read the value: %v", err)
		}
	} else {
		value, err = g.readStdin(maxSecret)
	}
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(value), "\n"), "\r")
	if text == "" {
		return "", engi.Errorf(engi.Invalid, "the value is empty").WithRemedy("pipe it into engi")
	}
	return text, nil
}

func (g *globals) showSecret(x v1.Secret) {
	var f facts
	f.add("name", "%s", x.Name)
	f.add("id", "%s", x.ID)
	f.add("version", "%d", x.Version)
	f.add("created", "%s", ago(x.CreatedAt))
	f.add("updated", "%s", ago(x.UpdatedAt))
	if len(x.Metadata) > 0 {
		f.add("words", "%s", words(x.Metadata))
	}
	f.print(g)
}
