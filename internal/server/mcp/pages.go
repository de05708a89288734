package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/pagestream"
)

// Clients with the extension for apps show pages of sessions, in a frame without
// any network. The frame sends the user's actions on the page, and reads the
// results, by tool calls that the client forwards.
const (
	appsExtension = "io.modelcontextprotocol/ui"
	appType       = "text/html;profile=mcp-app"
	viewURI       = "ui://engi/page"
	pageScheme    = "ui://engi/sessions/"
	watchPage     = "watch_page"

	answerPatience = 30 * time.Second // maximum wait of act_on_page for an answer
	watchPatience  = 20 * time.Second // maximum wait of watch_page for an update
	gatherTime     = 50 * time.Millisecond
	maxUpdates     = 256 << 10 // bytes of updates after which watch_page answers
)

type actOnPage struct {
	Session string         `json:"session" jsonschema:"ID or name"`
	Action  string         `json:"action" jsonschema:"name of the action: a task to begin with, or the data-action of an element of the page"`
	Data    map[string]any `json:"data,omitempty" jsonschema:"data of the action, like the fields of a form"`
	NoWait  bool           `json:"no_wait,omitempty" jsonschema:"do not wait for the answer"`
}

type sincePage struct {
	Session string `json:"session" jsonschema:"ID or name"`
	After   int64  `json:"after,omitempty" jsonschema:"seq of the last update that was received"`
}

// A page is the form of a page for clients and their models.
type page struct {
	Session string `json:"session"`
	Seq     int64  `json:"seq"`
	HTML    string `json:"html,omitempty"`
	Working bool   `json:"working"`
}

// changes holds the updates of a page.
type changes struct {
	Session string `json:"session"`
	Updates []any  `json:"updates"`
	Idle    bool   `json:"idle"` // all actions were answered, and Updates includes the end of the last answer
}

// pageTools returns the tools for pages.
func (s *Server) pageTools() ([]tool.Tool, error) {
	if s.opt.Pages == nil {
		return nil, nil
	}
	show, err := tool.Returning[page](tool.New("show_page", "Shows the page of a session. A model writes the page, and changes it after actions.", func(ctx context.Context, c *tool.Call, a oneSession) (tool.Result, error) {
		ui, err := s.opt.Pages.Get(ctx, c.Owner.Viewer(), a.Session, 0)
		return pageResult(ui, ""), err
	}))
	if err != nil {
		return nil, err
	}
	act, err := tool.Returning[page](tool.New("act_on_page", "Sends an action to the page of a session, and shows the page once the model has answered. The first action on an empty page describes the page to write.", s.act))
	if err != nil {
		return nil, err
	}
	act.Repeatable = true
	all := []tool.Tool{show, act}
	if s.view != "" {
		watch, err := tool.New(watchPage, "Returns what has happened on the page of a session, or waits until something does, while somebody answers.", s.watch)
		if err != nil {
			return nil, err
		}
		watch.Repeatable = true
		all = append(all, watch)
	}
	return all, nil
}

func pageResult(ui engi.Page, note string) tool.Result {
	working := ui.Working != "" || ui.Waiting > 0
	if note == "" && working {
		note = "The answer is still being given: show_page shows how it goes on.\n"
	}
	return tool.Result{Text: note + cmp.Or(ui.HTML, "The page is empty."), Data: page{string(ui.Session), ui.Seq, ui.HTML, working}}
}

// act performs an action and waits for its answer. A call that is repeated after a
// restart finds the first action.
func (s *Server) act(ctx context.Context, c *tool.Call, a actOnPage) (tool.Result, error) {
	before, err := s.opt.Pages.Get(ctx, c.Owner.Viewer(), a.Session, 0)
	if err != nil {
		return tool.Result{}, err
	}
	data, err := json.Marshal(a.Data)
	if a.Data == nil {
		data = nil
	}
	if err != nil {
		return tool.Result{}, engi.Errorf(engi.Invalid, "the data cannot be sent: %v", err)
	}
	id := string(before.Session)
	seq, err := s.opt.Pages.Act(ctx, engi.PageAction{Viewer: c.Owner.Viewer(), Session: id, Action: a.Action, Data: data, Scopes: c.Scopes, Idempotency: "mcp " + string(c.Run)})
	if err != nil {
		return tool.Result{}, err
	}
	if a.NoWait {
		return tool.Result{Text: "It is done; the answer comes.", Data: page{Session: id, Seq: seq, Working: true}}, nil
	}
	other := before.Working // the running work started before this action
	if seq <= before.Seq {  // the action happened before the restart
		other = ""
	}
	note, err := s.answered(ctx, c.Owner, id, seq, other)
	if err != nil {
		return tool.Result{}, err
	}
	ui, err := s.opt.Pages.Get(ctx, c.Owner.Viewer(), id, 0)
	return pageResult(ui, note), err
}

// answered waits for a limited time until the action seq is answered, and returns the result.
// The run other started before the action.
func (s *Server) answered(ctx context.Context, owner engi.Owner, session string, seq int64, other engi.RunID) (note string, err error) {
	leave, err := s.watches.Join("owner " + string(owner))
	if err != nil {
		return "", err
	}
	defer leave()
	soon, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	wrong := ""
	for u, err := range s.opt.Pages.Watch(soon, owner.Viewer(), session, seq) {
		switch {
		case soon.Err() != nil && ctx.Err() == nil:
			return "", nil
		case err != nil:
			return "", err
		case u.Kind == engi.PageBad:
			wrong = u.Text
		case u.Kind == engi.PageDone && (other == "" || u.Run != other):
			if u.Ended != engi.RunDone {
				note = fmt.Sprintf("The answer is %s: %s\n", u.Ended, wrong)
			}
			return note, nil
		}
	}
	return "", nil
}

// watch returns the updates of a page. If an answer is in progress, it waits for an
// update, and then a moment for more.
func (s *Server) watch(ctx context.Context, c *tool.Call, a sincePage) (tool.Result, error) {
	ui, err := s.opt.Pages.Get(ctx, c.Owner.Viewer(), a.Session, 0)
	if err != nil {
		return tool.Result{}, err
	}
	out := changes{Session: string(ui.Session), Updates: []any{}, Idle: ui.Working == "" && ui.Waiting == 0}
	if !out.Idle || a.After == 0 || a.After < ui.Seq {
		leave, err := s.watches.Join("owner " + string(c.Owner))
		if err != nil {
			return tool.Result{}, err
		}
		defer leave()
		soon, cancel := context.WithTimeout(ctx, watchPatience)
		defer cancel()
		encoder := pagestream.Formats()["engi"].New(pagestream.Start{Session: ui.Session})
		size, partial, seen := 0, false, max(a.After, 0)
		for u, err := range s.opt.Pages.Watch(soon, c.Owner.Viewer(), string(ui.Session), max(a.After, 0)) {
			if soon.Err() != nil && ctx.Err() == nil {
				break
			}
			if err != nil {
				return tool.Result{}, err
			}
			if len(out.Updates) == 0 && !out.Idle { // otherwise the state is known
				defer time.AfterFunc(gatherTime, cancel).Stop()
			}
			seen = max(seen, u.Seq)
			if partial && u.Partial { // a partial update includes the one before
				out.Updates = out.Updates[:len(out.Updates)-1]
			}
			partial = u.Partial
			events, _ := encoder.Encode(u)
			for _, e := range events {
				raw, err := json.Marshal(e.Data)
				if err != nil {
					return tool.Result{}, engi.Errorf(engi.Internal, "marshal an update: %v", err)
				}
				out.Updates = append(out.Updates, json.RawMessage(raw))
				size += len(raw)
			}
			if size > maxUpdates || out.Idle && seen >= ui.Seq {
				break
			}
		}
		out.Idle = out.Idle && seen >= ui.Seq
	}
	return tool.Result{Text: fmt.Sprintf("%d updates", len(out.Updates)), Data: out}, nil
}

// viewOf returns a document that shows pages: the page that the calling tool names,
// or the page of a session. Only script runs in the document, and it loads nothing.
func viewOf(script []byte) (string, error) {
	if strings.Contains(strings.ToLower(string(script)), "</script") {
		return "", engi.Errorf(engi.Internal, "the script that renders pages ended")
	}
	sum := sha256.Sum256(script)
	return `<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>engi</title><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-` + base64.StdEncoding.EncodeToString(sum[:]) + `'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
</head><body><script type="application/json" id="page">{}</script><script type="module">` + string(script) + `</script></body></html>
`, nil
}

// viewMeta returns the metadata of the document, which says that it needs no network.
func viewMeta() sdk.Meta {
	none := []string{}
	return sdk.Meta{"ui": map[string]any{"prefersBorder": true, "csp": map[string]any{"connectDomains": none, "resourceDomains": none, "frameDomains": none, "baseUriDomains": none}}}
}

// views adds the documents that show pages.
func (s *Server) views(server *sdk.Server, key engi.Key) {
	if s.view == "" {
		return
	}
	contents := func(uri, text string) *sdk.ReadResourceResult {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, MIMEType: appType, Text: text, Meta: viewMeta()}}}
	}
	server.AddResource(&sdk.Resource{
		URI: viewURI, Name: "page", Title: "The page of a session", MIMEType: appType, Meta: viewMeta(), Description: "viewer for the results of show_page and act_on_page",
	}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		if err := key.May(engi.ScopeAgents, false); err != nil {
			return nil, err
		}
		return contents(viewURI, s.view), nil
	})
	server.AddResourceTemplate(&sdk.ResourceTemplate{
		URITemplate: pageScheme + "{session}", Name: "session", Title: "The page of one session", MIMEType: appType, Meta: viewMeta(), Description: "by ID or name",
	}, func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		if err := key.May(engi.ScopeAgents, false); err != nil {
			return nil, err
		}
		name, err := url.PathUnescape(strings.TrimPrefix(req.Params.URI, pageScheme))
		if err != nil {
			return nil, sdk.ResourceNotFoundError(req.Params.URI)
		}
		ui, err := s.opt.Pages.Get(ctx, key.Owner.Viewer(), name, 0)
		if err != nil {
			return nil, missing(req.Params.URI, err)
		}
		r := contents(req.Params.URI, strings.Replace(s.view, `id="page">{}`, fmt.Sprintf(`id="page">{"session":%q}`, ui.Session), 1))
		r.CacheScope = "private"
		return r, nil
	})
	server.AddReceivingMiddleware(forApps)
}

// forApps removes the parts of the extension from lists for clients without it.
func forApps(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil || knowsApps(req) {
			return res, err
		}
		switch r := res.(type) {
		case *sdk.ListToolsResult:
			r.Tools = slices.DeleteFunc(slices.Clone(r.Tools), func(t *sdk.Tool) bool { return t.Name == watchPage })
			for i, t := range r.Tools {
				if t.Meta["ui"] != nil {
					plain := *t
					plain.Meta = nil
					r.Tools[i] = &plain
				}
			}
		case *sdk.ListResourcesResult:
			r.Resources = slices.DeleteFunc(slices.Clone(r.Resources), func(x *sdk.Resource) bool { return x.MIMEType == appType })
		case *sdk.ListResourceTemplatesResult:
			r.ResourceTemplates = slices.DeleteFunc(slices.Clone(r.ResourceTemplates), func(x *sdk.ResourceTemplate) bool { return x.MIMEType == appType })
		}
		return res, err
	}
}

// knowsApps reports whether the client of a request shows documents of our type.
func knowsApps(req sdk.Request) bool {
	s, ok := req.GetSession().(*sdk.ServerSession)
	if !ok || s.InitializeParams() == nil || s.InitializeParams().Capabilities == nil {
		return false
	}
	settings, _ := s.InitializeParams().Capabilities.Extensions[appsExtension].(map[string]any)
	types, _ := settings["mimeTypes"].([]any)
	return slices.Contains(types, any(appType))
}

// appMeta returns the metadata of a tool for clients that show pages; nil for other tools.
func appMeta(name string) sdk.Meta {
	visible := []string{"model", "app"}
	switch name {
	case "show_page", "act_on_page":
	case watchPage:
		visible = visible[1:]
	default:
		return nil
	}
	return sdk.Meta{"ui": map[string]any{"resourceUri": viewURI, "visibility": visible}, "ui/resourceUri": viewURI}
}
