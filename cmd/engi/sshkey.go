package main

import (
	"context"
	"os"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type sshKeyCommand struct {
	Add    sshKeyAdd     `cmd:"" help:"Add a public key."`
	List   listCommand   `cmd:"" aliases:"ls" help:"List public keys."`
	Delete removeCommand `cmd:"" aliases:"rm" help:"Delete public keys, and close their connections."`
}

var sshKeyCommands = sshKeyCommand{
	List: lists(example("engi ssh-key list"), table[v1.SSHKey]{"ID\tNAME\tFINGERPRINT\tOWNER\tCREATED\tUSED", func(x v1.SSHKey) []any {
		used := "never"
		if x.UsedAt != nil {
			used = ago(*x.UsedAt)
		}
		return []any{x.ID, x.Name, x.Fingerprint, x.Owner, ago(x.CreatedAt), used}
	}, nil}, (*client.Client).SSHKeys),
	Delete: removes(example("engi ssh-key delete ssh_u2dmwmlezjgprkqrgppgcz2mgu"), "deleted", (*client.Client).DeleteSSHKey),
}

type sshKeyAdd struct {
	File string `arg:"" help:"File with a public key, such as ~/.ssh/id_ed25519.pub; - reads standard input." placeholder:"FILE"`
	Name string `help:"Name of the key, for people (default: the comment in the file)." placeholder:"NAME"`
}

func (sshKeyAdd) Help() string {
	return `The holder of the private key can use your sessions, sandboxes and workspaces over SSH. Prints only
the ID on standard output.

Examples:
  engi ssh-key add ~/.ssh/id_ed25519.pub
  ssh-add -L | head -1 | engi ssh-key add - --name laptop`
}

func (s *sshKeyAdd) Run(ctx context.Context, g *globals) error {
	const most = 16 << 10
	var text []byte
	var err error
	if s.File == "-" {
		text, err = g.readStdin(most)
	} else if text, err = os.ReadFile(s.File); err != nil {
		err = engi.Errorf(engi.Invalid, "%v", err).WithRemedy("'ssh-keygen -t ed25519' makes a pair; name the file that ends in .pub")
	}
	if err != nil {
		return err
	}
	return create(ctx, g, func(d *connection) (v1.SSHKey, error) {
		return d.CreateSSHKey(ctx, v1.SSHKeyRequest{PublicKey: string(text), Name: s.Name})
	}, func(x v1.SSHKey) string { return x.ID })
}
