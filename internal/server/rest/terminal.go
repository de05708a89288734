package rest

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/place"
	"github.com/engi-dev/engi/internal/server/guesthttp"
	"github.com/engi-dev/engi/internal/terminal"
)

type terminals struct{ *terminal.Manager }

type aPlace struct {
	Place string `path:"id" maxLength:"128" doc:"ID or name of a session, or ID of a sandbox"`
}

type aTerminal struct {
	aPlace
	ID engi.TerminalID `path:"terminal" doc:"ID of the terminal"`
}

type aTerminalLink struct {
	aTerminal
	Link engi.TerminalLinkID `path:"link" doc:"ID of the link"`
}

type attachTerminal struct {
	Offset   int64  `query:"offset" minimum:"-2" default:"-1" doc:"Offset of the first byte of output to send; -1 means all output that is kept, -2 the screen"`
	Client   string `query:"client" maxLength:"64" doc:"Name with which the client identifies itself when it reconnects, so that its input is not lost or repeated: 8 to 64 letters, digits, - and _"`
	Name     string `query:"name" maxLength:"64" doc:"Name that other viewers see; absent means the owner's name, or the name of the link"`
	ReadOnly bool   `query:"read_only" doc:"Refuse input of this viewer"`
}

type attachOwn struct {
	aTerminal
	attachTerminal
}

type recordTerminal struct {
	aTerminal
	Format int `query:"format" enum:"2,3" default:"2" doc:"Version of asciicast"`
}

// Terminals returns the routes of terminals in sessions and sandboxes; service may be
// nil.
func Terminals(service *terminal.Manager) Resource {
	t := &terminals{service}
	res := Resource{tag: "terminals", about: "programs in terminals of sessions and sandboxes, to which clients attach and from which they detach", missing: missing(service != nil, "terminals")}
	upgrade := []answer{{status: http.StatusSwitchingProtocols, headers: map[string]string{"Upgrade": "websocket"}}}
	look, change := reads(engi.ScopeSandboxes), writes(engi.ScopeSandboxes)
	for _, at := range [][2]string{{"session", sessionPath}, {"sandbox", sandboxPath}} {
		noun, path := at[0], at[1]+"/{id}/terminals"
		one := path + "/{terminal}"
		res.routes = append(res.routes,
			send(Route{
				Pattern: "POST " + path, ID: "create-" + noun + "-terminal", Summary: "Start a terminal in a " + noun, Access: change,
				Text:   "The terminal keeps running without clients, survives restarts of the server and hibernation, and ends with its sandbox.",
				Status: http.StatusCreated, Location: "path of the terminal", Optional: true,
				Creates: "a repeated key returns the first terminal instead of starting another",
				Bodies:  []example{{"shell", "a larger shell", `{"args": ["/bin/sh"], "cols": 100, "rows": 30}`}},
			}, t.create),
			list(Route{Pattern: "GET " + path, ID: "list-" + noun + "-terminals", Summary: "List terminals of a " + noun, Text: "The newest come first. This does not resume a sandbox.", Access: look},
				func(c *call, in *aPlace) ([]engi.TerminalInfo, error) {
					return on(c, in.Place, func(p place.Place) ([]engi.TerminalInfo, error) { return t.List(c, c.viewer(), p) })
				}, terminalOf),
			fetch(Route{Pattern: "GET " + one, ID: "get-" + noun + "-terminal", Summary: "Get a terminal of a " + noun, Access: look},
				func(c *call, in *aTerminal) (v1.Terminal, error) {
					return on(c, in.Place, func(p place.Place) (v1.Terminal, error) { return to(terminalOf)(t.Get(c, c.viewer(), p, in.ID)) })
				}),
			act(Route{Pattern: "DELETE " + one, ID: "end-" + noun + "-terminal", Summary: "End a terminal of a " + noun, Access: change},
				func(c *call, in *aTerminal, _ none) error {
					_, err := on(c, in.Place, func(p place.Place) (none, error) { return none{}, t.End(c, c.viewer(), p, in.ID) })
					return err
				}),
			raw(Route{
				// A viewer of a terminal may also type into it.
				Pattern: "GET " + one + "/attach", ID: "attach-" + noun + "-terminal", Summary: "Attach to a terminal of a " + noun + " and type", Access: change,
				Text:    "A WebSocket with the subprotocol " + v1.TerminalProtocol + ": docs/terminals.md describes its messages. Several clients can attach to one terminal.",
				Answers: upgrade,
			}, t.attach),
			fetch(Route{
				Pattern: "GET " + one + "/screen", ID: "get-" + noun + "-terminal-screen", Summary: "Get the screen of a terminal of a " + noun + " shows", Access: look,
				Text: "Returns plain text for programs and models.",
			}, func(c *call, in *aTerminal) (v1.TerminalScreen, error) {
				return on(c, in.Place, func(p place.Place) (v1.TerminalScreen, error) {
					return to(screenOf)(t.Screen(c, c.viewer(), p, in.ID))
				})
			}),
			raw(Route{
				Pattern: "GET " + one + "/recording", ID: "record-" + noun + "-terminal", Summary: "Get a recording of a terminal of a " + noun, Access: look,
				Text:    "Returns the kept output with times, for asciinema and 'engi terminal replay'.",
				Answers: []answer{bytesOf(http.StatusOK, castType, nil)},
			}, t.record),
			send(Route{
				Pattern: "POST " + one + "/links", ID: "share-" + noun + "-terminal", Summary: "Create a link to a terminal of a " + noun, Access: change,
				Text:    "Everybody who has the link's secret can watch this terminal, and type into it if write is true, until the link expires or is revoked: see GET " + sharedPath + ".",
				Creates: "a repeated key returns the first link, without its secret, instead of creating another",
				Status:  http.StatusCreated, Optional: true,
			}, t.share),
			list(Route{Pattern: "GET " + one + "/links", ID: "list-" + noun + "-terminal-links", Summary: "List links to a terminal of a " + noun, Text: "The newest come first. Expired links are not listed.", Access: look},
				func(c *call, in *aTerminal) ([]engi.TerminalLink, error) {
					return on(c, in.Place, func(p place.Place) ([]engi.TerminalLink, error) { return t.Links(c, c.viewer(), p, in.ID) })
				}, linkOf),
			act(Route{Pattern: "DELETE " + one + "/links/{link}", ID: "unshare-" + noun + "-terminal", Summary: "Revoke a link to a terminal of a " + noun, Text: "Viewers who used the link are disconnected.", Access: change},
				func(c *call, in *aTerminalLink, _ none) error {
					_, err := on(c, in.Place, func(p place.Place) (none, error) { return none{}, t.Unshare(c, c.viewer(), p, in.ID, in.Link) })
					return err
				}),
		)
	}
	res.routes = append(res.routes, raw(Route{
		Pattern: "GET " + sharedPath, ID: "follow-terminal-link", Summary: "Attach to a terminal by a link", Access: open,
		Text: "Works as the WebSocket of the terminal's owner. The secret of the link is the bearer token, or, for browsers, " +
			"a second subprotocol, " + v1.TerminalSecret + "SECRET.",
		Answers: upgrade,
	}, t.follow))
	return res
}

const (
	sharedPath = "/shared/terminal"
	castType   = "application/x-asciicast"
)

// on calls do with the place that a path names.
func on[T any](c *call, name string, do func(place.Place) (T, error)) (T, error) {
	if strings.HasPrefix(c.route.path(), sessionPath) {
		return do(place.Place{Session: name})
	}
	id, err := engi.ParseSandboxID(name)
	if err != nil {
		var none T
		return none, err
	}
	return do(place.Place{Sandbox: id})
}

func (t *terminals) create(c *call, in *aPlace, q v1.TerminalRequest) (v1.Terminal, error) {
	var check checker
	if q.Dir != "" {
		check.absolute("dir", q.Dir)
	}
	check.Env("env", q.Env)
	check.text("user", q.User)
	for i, a := range q.Args {
		if strings.ContainsRune(a, 0) || i == 0 && a == "" {
			check.addf("args", "it is neither a program nor a program with arguments")
			break
		}
	}
	if err := check.err(); err != nil {
		return v1.Terminal{}, err
	}
	spec := terminal.Spec{Args: q.Args, Dir: q.Dir, Env: q.Env, User: q.User, Scrollback: int64(q.Scrollback)}
	if q.Cols != 0 || q.Rows != 0 {
		if q.Cols == 0 {
			q.Cols = 80
		}
		if q.Rows == 0 {
			q.Rows = 24
		}
		spec.Size = engi.TerminalSize{Cols: uint16(q.Cols), Rows: uint16(q.Rows)}
	}
	id := engi.NewTerminalID()
	return on(c, in.Place, func(p place.Place) (v1.Terminal, error) {
		x, err := once(c, q, idempotency.Creation[engi.TerminalInfo]{
			IDs: []string{string(id)},
			Work: func(ids []string) (engi.TerminalInfo, error) {
				if len(ids) > 0 {
					id = engi.TerminalID(ids[0])
				}
				return t.Create(c, c.viewer(), p, id, spec)
			},
			Find: func(ids []string, _ bool) (engi.TerminalInfo, error) {
				return t.Get(c, c.viewer(), p, engi.TerminalID(ids[0]))
			},
		})
		if err == nil {
			c.location(strings.TrimSuffix(c.r.URL.EscapedPath(), "/"), string(x.ID))
		}
		return terminalOf(x), err
	})
}

var clientName = regexp.MustCompile(`^[A-Za-z0-9_-]{8,64}$`)

// viewer converts and checks a request to attach.
func (in *attachTerminal) viewer(c *call) (terminal.Viewer, error) {
	v := terminal.Viewer{Client: in.Client, Name: strings.ToValidUTF8(in.Name, "\uFFFD"), ReadOnly: in.ReadOnly}
	if in.Client != "" && !clientName.MatchString(in.Client) {
		return v, invalid("client", "it is not 8 to 64 letters, digits, '-' and '_'")
	}
	if err := wantsWebSocket(c, "a terminal is a WebSocket", "connect with a WebSocket client"); err != nil {
		return v, err
	}
	if !slices.Contains(subprotocols(c.r), v1.TerminalProtocol) {
		return v, engi.Errorf(engi.Invalid, "the client does not speak %s", v1.TerminalProtocol).WithRemedy("request this subprotocol")
	}
	return v, nil
}

// subprotocols returns the subprotocols that a WebSocket client offers.
func subprotocols(r *http.Request) (all []string) {
	for p := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-Websocket-Protocol"), ","), ",") {
		all = append(all, strings.TrimSpace(p))
	}
	return all
}

func (t *terminals) attach(c *call, in *attachOwn, _ none) error {
	v, err := in.viewer(c)
	if err != nil {
		return err
	}
	_, err = on(c, in.Place, func(p place.Place) (none, error) {
		return none{}, t.serve(c, in.Offset, func(ctx context.Context) (context.Context, *terminal.Attachment, error) {
			return t.Attach(ctx, c.viewer(), p, in.ID, v)
		})
	})
	return err
}

// serve serves the connection that attach returns.
func (t *terminals) serve(c *call, offset int64, attach func(context.Context) (context.Context, *terminal.Attachment, error)) error {
	d, cancel := c.guest()
	defer cancel()
	ctx, a, err := attach(d.Ctx)
	if err != nil {
		return err
	}
	defer a.Close()
	free, err := c.s.streams.Join(string(a.Terminal.Sandbox))
	if err != nil {
		return err
	}
	defer free()
	return d.Attach(ctx, a, offset, c.s.origins)
}

func (t *terminals) follow(c *call, in *attachTerminal, _ none) error {
	secret := c.secret()
	for _, p := range subprotocols(c.r) {
		if rest, ok := strings.CutPrefix(p, v1.TerminalSecret); ok {
			secret = rest // the key of a signed-in browser is in this header
		}
	}
	if secret == "" {
		return engi.Errorf(engi.Anonymous, "this request carries no secret of a link").WithRemedy("send it as bearer token, or in the subprotocol %sSECRET", v1.TerminalSecret)
	}
	v, err := in.viewer(c)
	if err != nil {
		return err
	}
	return t.serve(c, in.Offset, func(ctx context.Context) (context.Context, *terminal.Attachment, error) {
		return t.Follow(ctx, secret, v)
	})
}

func (t *terminals) record(c *call, in *recordTerminal, _ none) error {
	_, err := on(c, in.Place, func(p place.Place) (none, error) {
		return none{}, t.Record(c, c.viewer(), p, in.ID, terminal.Format(in.Format), func() io.Writer {
			c.Header().Set("Content-Type", castType)
			c.Header().Set("X-Content-Type-Options", "nosniff")
			return c
		})
	})
	if err != nil && c.wrote {
		panic(http.ErrAbortHandler) // the connection breaks, so that the caller does not take a short answer for a whole one
	}
	return err
}

func (t *terminals) share(c *call, in *aTerminal, q v1.TerminalLinkRequest) (v1.TerminalLink, error) {
	var check checker
	check.text("name", q.Name)
	if err := check.err(); err != nil {
		return v1.TerminalLink{}, err
	}
	ttl := q.TTL.Std()
	if ttl == 0 {
		ttl = time.Hour
	}
	l := engi.TerminalLink{ID: engi.NewTerminalLinkID(), Name: q.Name, Write: q.Write}
	return on(c, in.Place, func(p place.Place) (v1.TerminalLink, error) {
		return once(c, q, idempotency.Creation[v1.TerminalLink]{
			IDs: []string{string(l.ID)},
			Work: func(ids []string) (v1.TerminalLink, error) {
				if len(ids) > 0 {
					l.ID = engi.TerminalLinkID(ids[0])
				}
				made, secret, err := t.Share(c, c.viewer(), p, in.ID, l, ttl)
				x := linkOf(made)
				x.Secret = secret
				return x, err
			},
			Find: func(ids []string, _ bool) (v1.TerminalLink, error) {
				all, err := t.Links(c, c.viewer(), p, in.ID)
				for _, x := range all {
					if string(x.ID) == ids[0] {
						return linkOf(x), nil
					}
				}
				if err == nil {
					err = engi.Errorf(engi.NotFound, "there is no such link")
				}
				return v1.TerminalLink{}, err
			},
		})
	})
}

func terminalOf(x engi.TerminalInfo) v1.Terminal {
	args := make([]string, len(x.Args))
	for i, a := range x.Args {
		args[i] = strings.ToValidUTF8(a, "\uFFFD")
	}
	return v1.Terminal{
		ID: string(x.ID), Owner: string(x.Owner), SessionID: string(x.Session), SandboxID: string(x.Sandbox), Args: args, Dir: x.Dir,
		Cols: int(x.Size.Cols), Rows: int(x.Size.Rows), Running: x.Running, Viewers: guesthttp.ViewersOf(x.Viewers), CreatedAt: x.Created,
	}
}

func screenOf(x terminal.Screen) v1.TerminalScreen {
	return v1.TerminalScreen{
		Cols: int(x.Size.Cols), Rows: int(x.Size.Rows), Text: strings.Join(x.Lines, "\n") + "\n", Alternate: x.Alternate, Title: x.Title, Offset: x.Offset,
		Cursor: v1.Cursor{Col: x.CursorX, Row: x.CursorY, Visible: x.CursorVisible},
	}
}

func linkOf(x engi.TerminalLink) v1.TerminalLink {
	return v1.TerminalLink{ID: string(x.ID), TerminalID: string(x.Terminal), Name: x.Name, Write: x.Write, CreatedAt: x.Created, ExpiresAt: x.Expires}
}
