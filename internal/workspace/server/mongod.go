package server

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

//go:embed mongod.sh
var mongodScript string

const (
	// MongodUsers is the database with the users of a mongod.
	MongodUsers = "admin"

	setUpPort = 27018            // port of a new mongod, on loopback, until it has its user
	madeFile  = runDir + "/made" // tells the script that the user exists
	fullFile  = runDir + "/full" // by which the script tells that the volume is full
)

// A Dial connects to a server from its own machine.
type Dial func(context.Context) (net.Conn, error)

// A MongodClient administers a mongod. Its methods are repeated if they were interrupted.
type MongodClient interface {
	// SetUp gives a new server its user.
	SetUp(ctx context.Context, dial Dial, a Access) error
	// Limit has the user only read and remove documents while the volume is full, and do everything otherwise.
	Limit(ctx context.Context, dial Dial, a Access, full bool) error
}

// Mongod returns the kind of mongodb services that run the mongod in a template of the operator. It reports Invalid
// for a version, because only the template decides which one runs.
func Mongod(template, version string, client MongodClient) (*Kind, error) {
	if version != "" && version != "latest" {
		return nil, engi.Errorf(engi.Invalid, "there is no version %.70q of %s: the template %s decides which version of MongoDB runs", version, engi.ServiceMongoDB, template).
			WithRemedy("leave the version out")
	}
	return &Kind{
		Type: engi.ServiceMongoDB, Template: template, Program: "MongoDB", Port: 27017,
		script: mongodScript, user: "mongodb", ending: "TERM", access: mongoAccess, greet: greetMongod, client: client,
		settings: func(Access, map[string]string) (string, error) { return "", nil }, // the user is created over the protocol
		url: func(host string, a Access) string {
			// Without j, mongod answers before a write is on disk.
			return link("mongodb", host, 27017, a) + "?authSource=" + MongodUsers + "&journal=true"
		},
	}, nil
}

// greetMongod is greetMongo for servers that may tell their version to their users only.
func greetMongod(c net.Conn, a Access) (version string, err error) {
	version, err = greetMongo(c, a)
	if errors.Is(err, errUnauthorized) {
		return "", nil
	}
	return version, err
}

// finish gives a new server its user, if it waits for it, and then tells the script to serve.
func (k *Kind) finish(ctx context.Context, g engi.Guest, a Access) error {
	dial := func(ctx context.Context) (net.Conn, error) { return g.Dial(ctx, setUpPort) }
	c, err := within(ctx, greetTime, "set up the server", dial)
	if err != nil {
		return engi.Ignore(err, engi.Unavailable) // the server is not new, or has not started yet
	}
	c.Close()
	if err := k.client.SetUp(ctx, dial, a); err != nil {
		return err
	}
	_, err = within(ctx, callTime, "set up the server", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, g.Write(ctx, madeFile, strings.NewReader(""), engi.WriteOptions{Mode: 0o600, User: "root"})
	})
	return err
}

// Limit has a server that is ready refuse to write more if its volume is full and the program does not see to that itself.
func (k *Kind) Limit(ctx context.Context, g engi.Guest, a Access) error {
	if k.client == nil {
		return nil
	}
	_, err := within(ctx, callTime, "find out whether the volume is full", func(ctx context.Context) (engi.FileInfo, error) { return g.Stat(ctx, fullFile) })
	if err := engi.Ignore(err, engi.NotFound); err != nil {
		return err
	}
	return k.client.Limit(ctx, func(ctx context.Context) (net.Conn, error) { return g.Dial(ctx, k.Port) }, a, err == nil)
}
