package rest

import (
	"cmp"
	"context"
	"html"
	"iter"
	"net/http"
	"strconv"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
	"github.com/engi-dev/engi/internal/server/pagestream"
)

const (
	pageType = "text/html; charset=utf-8"
	// pagePolicy makes a page inert: it can be shown, and nothing else. Models write pages, and
	// their origin is that of the API.
	pagePolicy = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

type pageRoutes struct{ engi.Pages }

type pageGet struct {
	aSession
	At int64 `query:"at" minimum:"0" doc:"Return the page as it was after the event with this seq; 0 means now"`
}

type pageAct struct {
	aSession
	Format string `query:"format" enum:"engi,ai-sdk,ag-ui,json-render,a2ui" doc:"Answer with the stream of the page in this protocol, up to the end of the model's answer; absent means engi if the Accept header requests events, otherwise no stream"`
}

type pageWatch struct {
	aSession
	Format    string `query:"format" enum:"engi,ai-sdk,ag-ui,json-render,a2ui" default:"engi" doc:"Protocol of the stream"`
	After     int64  `query:"after" minimum:"0" doc:"Only changes after this seq: the seq of the last event received; 0 means the whole page and later changes"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of after, as browsers send it; takes precedence over after"`
}

// Pages returns the routes of the pages of sessions; service may be nil.
func Pages(service engi.Pages) Resource {
	u := &pageRoutes{service}
	absent := absentUnless(service != nil, "this node has no pages", "switch agents on in its configuration, section [models]")
	const path = sessionPath + "/{id}/page"
	look, change := reads(engi.ScopeAgents), writes(engi.ScopeAgents)
	return Resource{tag: "interfaces", about: "pages of sessions that a model writes and changes while they are used", missing: absent, routes: []Route{
		raw(Route{
			Pattern: "POST " + path + "/actions", ID: "act-on-ui", Summary: "Send an action to a page", Access: change,
			Text: "The model's answer changes the page; watch the page from the seq of this answer to follow the changes. After the answer, the action survives a restart of the node. " +
				"Actions that arrive while the model answers are answered together afterwards. " +
				"With an Accept header for SSE or NDJSON, or with format, the answer is the stream of the page up to the end of the model's answer. If the client disconnects, the model's answer continues.",
			Creates: "a repeated key returns the first action and starts nothing",
			Bodies: []example{
				{"counter", "something to begin with", `{"action": "demo-counter"}`},
				{"form", "a form that was sent", `{"action": "add-task", "data": {"title": "Buy milk"}}`},
			},
			Answers: append([]answer{jsonOf[v1.PageAction](http.StatusAccepted, nil)}, streamOf[v1.PageUpdate](nil, httpio.SSE, httpio.NDJSON)...),
		}, u.act),
		raw(Route{
			Pattern: "GET " + path, ID: "get-ui", Summary: "Get a page", Access: look,
			Text:    "Returns an HTML document in which scripts and forms are disabled, or JSON with an Accept header for JSON. at must name an event that the log still has.",
			Answers: []answer{bytesOf(http.StatusOK, pageType, map[string]string{"Content-Security-Policy": "that it can do nothing"}), jsonOf[v1.Page](http.StatusOK, nil)},
		}, u.get),
		raw(Route{
			Pattern: "GET " + path + "/stream", ID: "watch-ui", Summary: "Watch a page", Access: look,
			Text: "Streams the whole page first, then its changes as they happen. A client that reconnects with the seq of the last event it received misses nothing and receives nothing twice, also after a restart of the node. " +
				"format ai-sdk is the AI SDK's UI message stream and ag-ui is AG-UI's event stream; both end with the run and need SSE. json-render sends RFC 6902 patches of a tree of elements, " +
				"and a2ui sends messages of A2UI 0.9 for its basic catalogue, one line each unless SSE is requested. The schema here is for format engi. " +
				"With ai-sdk, a client that reconnects receives the current answer from its beginning, or 204 if there is none, as the SDK's hooks expect.",
			Answers: append(streamOf[v1.PageUpdate](nil, httpio.SSE, httpio.NDJSON), answer{status: http.StatusNoContent}),
		}, u.watch),
		act(Route{
			Pattern: "POST " + path + "/cancel", ID: "cancel-ui", Summary: "Stop the model's answer on a page", Access: change,
			Text: "Ends the run that answers and drops the waiting actions. Changes already made to the page stay. Cancelling twice is no error.",
		}, func(c *call, in *aSession, _ none) error { return u.Cancel(c, c.viewer(), in.ID) }),
		send(Route{
			Pattern: "POST " + path + "/restore", ID: "restore-ui", Summary: "Roll a page back to an earlier event", Access: change,
			Text: "Restores the page as it was after an earlier event. The rollback is an event too and can be undone. While the model answers, the answer is a conflict.",
		}, func(c *call, in *aSession, q v1.PageRestoreRequest) (v1.Page, error) {
			if q.Seq < 1 {
				return v1.Page{}, invalid("seq", "it is missing")
			}
			return to(pageOf)(u.Restore(c, c.viewer(), in.ID, q.Seq))
		}),
	}}
}

func (u *pageRoutes) act(c *call, in *pageAct, q v1.PageActionRequest) (err error) {
	if string(q.Data) == "null" {
		q.Data = nil
	}
	action := engi.PageAction{
		Viewer: c.viewer(), Session: in.ID, Action: q.Action, Data: q.Data, Agent: q.Agent, Model: q.Model, Scopes: c.auth.Scopes, Idempotency: c.key,
	}
	if err := action.Faults().Err(); err != nil {
		return err
	}
	format, streams := pagestream.Formats()[cmp.Or(in.Format, "engi")], c.form != httpio.JSON
	var before engi.Page
	if in.Format != "" {
		if c.form, err = httpio.Negotiate(c.r, format.Forms...); err != nil {
			return err
		}
		streams = true
	}
	if streams {
		if before, err = u.Get(c, c.viewer(), in.ID, 0); err != nil {
			return err
		}
		leave, err := c.s.watches.Join("owner " + string(c.auth.Owner))
		if err != nil {
			return err
		}
		defer leave()
	}
	seq, err := u.Act(c, action)
	switch {
	case err != nil:
		return err
	case !streams:
		return c.reply(http.StatusAccepted, v1.PageAction{Seq: seq})
	}
	other := before.Working // the running work started before this action
	if c.key != "" {
		now, err := u.Get(c, c.viewer(), string(before.Session), 0)
		if err != nil {
			return err
		}
		if now.Waiting <= before.Waiting { // no new action waits, unless the request was a repetition
			other = ""
		}
	}
	return u.stream(c, pagestream.Start{Session: before.Session, Answer: true}, format, seq, func(x engi.PageUpdate) (skip, last bool) {
		theirs := other != "" && x.Run == other
		return theirs && format.Run, !theirs && x.Kind == engi.PageDone
	})
}

func (u *pageRoutes) get(c *call, in *pageGet, _ none) error {
	form, err := httpio.Negotiate(c.r, httpio.HTML, httpio.JSON)
	if err != nil {
		return err
	}
	x, err := u.Get(c, c.viewer(), in.ID, in.At)
	if err != nil {
		return err
	}
	h := c.Header()
	h.Set("Vary", "Accept")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if form == httpio.JSON {
		return c.reply(http.StatusOK, pageOf(x))
	}
	page := "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>" + html.EscapeString(in.ID) + "</title></head>\n<body>" + x.HTML + "</body></html>\n"
	h.Set("Content-Type", pageType)
	h.Set("Content-Length", strconv.Itoa(len(page)))
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = httpio.DeadlineWriter{W: c}.Write([]byte(page)) // an error means that the caller has left
	return nil
}

func (u *pageRoutes) watch(c *call, in *pageWatch, _ none) error {
	after, err := lastEvent(in.LastEvent, in.After)
	if err != nil {
		return err
	}
	format := pagestream.Formats()[in.Format]
	if c.form, err = httpio.Negotiate(c.r, format.Forms...); err != nil {
		return err
	}
	x, err := u.Get(c, c.viewer(), in.ID, 0) // the stream has not started
	if err != nil {
		return err
	}
	start := pagestream.Start{Session: x.Session, Resumed: after > 0}
	if format.Replay {
		then := x
		if after > 0 {
			then, err = u.Get(c, c.viewer(), in.ID, after)
			if engi.Is(err, engi.Invalid, engi.Expired) { // the seq belongs to a lost log or is beyond its end
				then, after, err = x, 0, nil
			}
			if err != nil {
				return err
			}
		}
		switch idle := x.Working == "" && x.Waiting == 0; {
		case idle && after == 0:
			start.Idle = true
		case idle && x.Answered <= after:
			c.WriteHeader(http.StatusNoContent)
			return nil
		default:
			start.Answer, start.Resumed = true, after > then.Answered
			after = then.Answered
		}
	}
	leave, err := c.s.watches.Join("owner " + string(c.auth.Owner))
	if err != nil {
		return err
	}
	defer leave()
	return u.stream(c, start, format, after, func(x engi.PageUpdate) (skip, last bool) { return false, format.Replay && x.Kind == engi.PageDone })
}

// stream answers with the updates of a page after a seq. For each update, pick returns
// whether to skip it, and whether it is the last.
func (u *pageRoutes) stream(c *call, start pagestream.Start, format pagestream.Format, after int64, pick func(engi.PageUpdate) (skip, last bool)) error {
	session := string(start.Session)
	then := engi.PageUpdate{Kind: engi.PageReplaced, Seq: after}
	paged := after > 0 && (format.State || format.Run && start.Answer)
	if paged {
		x, err := u.Get(c, c.viewer(), session, after)
		if err != nil && !engi.Is(err, engi.Expired) { // Expired: the stream starts with the whole page
			return err
		}
		then.HTML = x.HTML
	}
	if name := format.Header[0]; name != "" {
		c.Header().Set(name, format.Header[1])
	}
	enc := format.New(start)
	return stream(c, func(ctx context.Context) iter.Seq2[engi.PageUpdate, error] {
		return func(yield func(engi.PageUpdate, error) bool) {
			if !paged || yield(then, nil) {
				u.Watch(ctx, c.viewer(), session, after)(yield)
			}
		}
	}, func(out *httpio.EventWriter, x engi.PageUpdate) (bool, error) {
		skip, last := pick(x)
		if skip {
			return false, nil
		}
		events, ends := enc.Encode(x)
		for i, e := range events {
			seq := ""
			if i == len(events)-1 && x.Seq > 0 { // the caller has seen all updates
				seq = atOffset(x.Seq)
			}
			var err error
			if e.Text != "" {
				err = out.SendText(seq, e.Text)
			} else {
				err = out.Send(e.Name, seq, e.Data)
			}
			if err != nil {
				return true, err
			}
		}
		return last || ends, nil
	}, func(kind string, p *v1.Problem) any {
		if p == nil {
			return v1.PageUpdate{Type: kind}
		}
		return enc.Fail(p).Data
	})
}

func pageOf(x engi.Page) v1.Page {
	return v1.Page{SessionID: string(x.Session), Owner: string(x.Owner), HTML: x.HTML, Seq: x.Seq, Working: string(x.Working), Waiting: x.Waiting, UpdatedAt: moment(x.Updated)}
}
