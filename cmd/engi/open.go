package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

type openCommand struct {
	Print bool `help:"Print the link, and open no browser."`
}

func (openCommand) Help() string {
	return `Opens the dashboard in a browser, with a link that signs in. The link works once, within five
minutes, and the browser that opens it has the rights of the key that this command uses. If no
browser can be started, the link is printed.

Examples:
  engi open
  engi open --print
  ENGI_KEY=engi_... engi open --url https://engi.example`
}

func (o *openCommand) Run(ctx context.Context, g *globals) error {
	return g.at(ctx, serverOnly, func(d *connection) error {
		l, err := d.DashboardLink(ctx)
		if err != nil {
			return err
		}
		url := strings.TrimRight(d.url, "/") + l.Path
		if g.JSON {
			return g.printJSON(struct {
				URL string `json:"url"`
				v1.DashboardLink
			}{url, l})
		}
		if o.Print || !browse(ctx, url) {
			fmt.Fprintln(g.out, url)
			return nil
		}
		g.note("opened %s/ in your browser; the link is good until %s", strings.TrimRight(d.url, "/"), l.ExpiresAt.Local().Format(time.TimeOnly))
		return nil
	})
}

// browse opens a URL in the user's browser; it returns false if there is none.
func browse(ctx context.Context, url string) bool {
	switch {
	case runtime.GOOS == "darwin":
		return exec.CommandContext(ctx, "open", url).Run() == nil
	case runtime.GOOS == "windows":
		return exec.CommandContext(ctx, "rundll32", "url.dll,FileProtocolHandler", url).Run() == nil
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return false
	}
	return exec.CommandContext(ctx, "xdg-open", url).Run() == nil
}
