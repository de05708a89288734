package guest_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/guestd"
	"github.com/engi-dev/engi/guest/wire"
)

func twin(t testing.TB) *guest.Client {
	s := guestd.New(guestd.Options{Root: t.TempDir(), Token: "secret", Twin: true})
	ctx, cancel := context.WithCancel(context.Background())
	c, err := guest.Open(t.Context(), func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		go s.Serve(ctx, b)
		return a, nil
	}, "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); cancel(); s.Close() })
	if err := c.Setup(t.Context(), wire.Setup{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSmoke(t *testing.T) {
	c := twin(t)
	for _, l := range []struct {
		l    engi.Language
		p    string
		code string
	}{
		{engi.Python, "/usr/bin/python3", "import sys,os\nprint(sys.argv, sys.path, os.environ, list(sys.modules)[-5:], __name__, sys.orig_argv)\nraise ValueError(1)"},
		{engi.JavaScript, "/usr/bin/node", "console.log(process.argv, process.execArgv, process.env, Object.keys(require.cache), require.main===module, module.children, module.parent)\nthrow new Error('x')"},
		{engi.TypeScript, "/tmp/guest/dn/deno", "const x: number = 5; console.log(Deno.args, x, import.meta.main, Deno.env.toObject()); await Promise.resolve(); throw new Error('x')"},
		{engi.Bash, "/usr/bin/bash", "echo $0 $@ $#; env; set -u; declare -F; echo $ENGI_CODE"},
		{engi.Go, "/usr/local/go/bin/go", "package main\nimport (\"fmt\";\"os\")\nfunc main() { fmt.Println(os.Args); os.Exit(3) }"},
	} {
		for _, warm := range []bool{false, true} {
			if _, err := exec.LookPath(l.p); err != nil {
				continue
			}
			if warm {
				if err := c.Prepare(t.Context(), wire.Prepare{Language: l.l, Interpreter: l.p}); err != nil {
					fmt.Println(err)
					continue
				}
			}
			t0 := time.Now()
			r, err := c.Run(t.Context(), wire.Run{ID: string(engi.NewExecutionID()), Language: l.l, Interpreter: l.p, Args: []string{"a", "b c'd"}, Env: map[string]string{"FOO": "bar"},
				Files: []wire.File{{Path: wire.Entry(l.l), Data: []byte(l.code)}}, Timeout: 20 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			for ch, err := range r.Output(t.Context(), 0) {
				fmt.Printf("%s %q %v\n", ch.Stream, ch.Data, err)
			}
			fin, err := r.Finish(t.Context())
			fmt.Printf("%s %v %+v %v\n", l.l, time.Since(t0), fin, err)
		}
	}
}
