package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

type keyCommand struct {
	Create keyCreate     `cmd:"" help:"Create a key; its secret is printed only once."`
	List   listCommand   `cmd:"" help:"List keys."`
	Revoke removeCommand `cmd:"" help:"Revoke keys."`
}

var keyCommands = keyCommand{
	List: lists(example("engi key list"), table[v1.Key]{"ID\tNAME\tOWNER\tSCOPES\tSTATE\tCREATED", func(k v1.Key) []any {
		state := "in force"
		switch {
		case k.RevokedAt != nil:
			state = "revoked " + ago(*k.RevokedAt)
		case k.ExpiresAt != nil && time.Now().After(*k.ExpiresAt):
			state = "expired " + ago(*k.ExpiresAt)
		case k.ExpiresAt != nil:
			state = "until " + k.ExpiresAt.Format(time.DateTime)
		}
		who := orDash(k.Owner)
		if k.Admin {
			who += " (admin)"
		}
		return []any{k.ID, k.Name, who, strings.Join(k.Scopes, " "), state, ago(k.CreatedAt)}
	}, nil}, (*client.Client).Keys),
	Revoke: removes(example("engi key revoke key_u2dmwmlezjgprkqrgppgcz2mgu"), "revoked", (*client.Client).RevokeKey),
}

type keyCreate struct {
	Name    string   `arg:"" optional:"" help:"Name of the key, for people." placeholder:"NAME"`
	Owner   string   `help:"Owner of the key: callers with it see and change this owner's objects." placeholder:"OWNER"`
	Admin   bool     `help:"Create an admin key, which has every right."`
	Scope   []string `help:"Scope of the key: executions, sandboxes, templates, volumes, secrets, keys, agents, docs, events, approvals, or read, which allows reading everything (default: everything except administration and decisions on approvals). May be repeated." placeholder:"SCOPE"`
	Expires string   `help:"Lifetime of the key, like 30d (default: no limit)." placeholder:"D"`
}

func (keyCreate) Help() string {
	return `Prints only the secret on standard output, so that it can be piped.

Examples:
  engi key create ci --owner team-a --expires 30d
  engi key create dashboard --owner team-a --scope read
  ENGI_KEY=$(engi key create me --owner me) engi run hello.py`
}

func (k *keyCreate) Run(ctx context.Context, g *globals) error {
	expires, err := duration("--expires", k.Expires)
	if err != nil {
		return err
	}
	return show(ctx, g, func(d *connection) (v1.Key, error) {
		return d.CreateKey(ctx, v1.KeyRequest{Name: k.Name, Owner: k.Owner, Admin: k.Admin, Scopes: k.Scope, ExpiresIn: expires})
	}, func(made v1.Key) {
		until := "never expires"
		if made.ExpiresAt != nil {
			until = "expires " + made.ExpiresAt.Format(time.RFC3339)
		}
		g.note("made %s for %s; it %s; the secret is not shown again", made.ID, orDash(made.Owner), until)
		fmt.Fprintln(g.out, made.Secret)
	})
}
