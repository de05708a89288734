package client_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/api/v1"
)

var laptop = v1.SSHKeyRequest{PublicKey: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDzGJ4hqzqI1bQ6cJ0dWFnBsCHzM1Y0Zc0xX1mDk3p5v me@laptop"}

func ExampleClient_CreateSSHKey() {
	c, stop := connect()
	defer stop()
	k := must(c.CreateSSHKey(context.Background(), laptop))
	fmt.Println(k.Name, k.Fingerprint)
	// Output: me@laptop SHA256:GjK5C6TDfgpWV4tc3aOu+sm07FZT88jYum15Twjnkkw
}

func ExampleClient_SSHKeys() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSSHKey(ctx, laptop))
	for _, k := range must(c.SSHKeys(ctx)) {
		fmt.Println(k.Name, k.UsedAt == nil)
	}
	// Output: me@laptop true
}

func ExampleClient_SSHKey() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	k := must(c.SSHKey(ctx, must(c.CreateSSHKey(ctx, laptop)).ID))
	fmt.Println(k.Name)
	// Output: me@laptop
}

func ExampleClient_DeleteSSHKey() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	if err := c.DeleteSSHKey(ctx, must(c.CreateSSHKey(ctx, laptop)).ID); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(must(c.SSHKeys(ctx))))
	// Output: 0
}

func ExampleClient_SSHServer() {
	c, stop := connect()
	defer stop()
	s := must(c.SSHServer(context.Background()))
	fmt.Println(strings.Fields(s.HostKey)[0], s.Fingerprint[:7], s.Address == "")
	// Output: ssh-ed25519 SHA256: true
}

func ExampleClient_SSH() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	box := must(c.CreateSandbox(ctx, v1.SandboxRequest{}))
	hostKey, _, _, _, err := ssh.ParseAuthorizedKey([]byte(must(c.SSHServer(ctx)).HostKey))
	if err != nil {
		log.Fatal(err)
	}
	conn := must(c.SSH(ctx, box.ID))
	client, channels, requests, err := ssh.NewClientConn(conn, box.ID, &ssh.ClientConfig{User: "anybody", HostKeyCallback: ssh.FixedHostKey(hostKey)})
	if err != nil {
		log.Fatal(err)
	}
	shell := ssh.NewClient(client, channels, requests)
	defer shell.Close()
	out := must(must(shell.NewSession()).Output("echo $((6*7))"))
	fmt.Print(string(out))
	// Output: 42
}
