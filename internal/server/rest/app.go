package rest

import (
	"bytes"
	"context"
	"io"
	"iter"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const (
	appPath = "/v1/apps"

	maxAppContent = 4 << 20 // bytes of the contents in one list of files
)

type apps struct {
	engi.Apps
	ports  PortService
	events engi.Events
}

type anApp struct {
	ID string `path:"id" maxLength:"128" doc:"ID or name of the app"`
}

type watchApp struct {
	anApp
	After     int64  `query:"after" minimum:"-1" default:"-1" doc:"Only events after this seq: the seq of the last event received; 0 means all events, -1 only new ones"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of after, as browsers send it; takes precedence over after"`
}

type listRevisions struct {
	anApp
	page
}

type diffApp struct {
	anApp
	From int64 `query:"from" minimum:"0" doc:"Revision; 0 means the parent of to"`
	To   int64 `query:"to" minimum:"0" doc:"Revision; 0 means the last one"`
}

type ofRevision struct {
	anApp
	Revision int64 `query:"revision" minimum:"0" doc:"Revision; 0 means the last one"`
}

type listAppFiles struct {
	ofRevision
	Path       string   `query:"path" maxLength:"1024" doc:"Only files below this directory, or files that match this pattern, in which * and ? match everything except slashes" example:"src"`
	Extensions []string `query:"extensions" doc:"Only files with these extensions, separated by commas" example:".jsx,.css"`
	MaxSize    int64    `query:"max_size" minimum:"0" doc:"Only files of at most this many bytes; 0 means no limit"`
	Content    bool     `query:"content" doc:"Include the content of the files, up to 4 MiB in all; the other files can be downloaded"`
}

type getAppFile struct {
	ofRevision
	Path string `query:"path" required:"true" maxLength:"1024" doc:"Path of the file, relative to the app" example:"src/App.jsx"`
	download
}

type getAppLogs struct {
	anApp
	Max   int    `query:"max" minimum:"1" maximum:"1048576" default:"65536" doc:"Size of the end of the log, in bytes"`
	After string `query:"after" maxLength:"100" doc:"Mark of an earlier answer: only output that the same server has printed since; all output of a newer server"`
}

// Apps returns the routes of apps; service may be nil. Ports returns the addresses of
// their pages, and events the end of the event log.
func Apps(service engi.Apps, ports PortService, events engi.Events) Resource {
	a := &apps{service, ports, events}
	absent := absentUnless(service != nil, "this node has no apps", "use /v1/sandboxes: a server in a sandbox has a preview, too")
	const one = appPath + "/{id}"
	look, change := reads(engi.ScopeSandboxes), writes(engi.ScopeSandboxes)
	return Resource{tag: "apps", about: "web applications that models write: files with a history, a sandbox in which their server runs, and a preview", missing: absent, routes: append(append(a.publishing(one), a.inspecting(one)...), []Route{
		send(Route{
			Pattern: "POST " + appPath, ID: "create-app", Summary: "Create an app", Access: change, Objects: Owned,
			Text: "Answers once the app's page is served at preview_url. An app whose server does not start is created too: its state is failed, and error says why. " +
				"The template must have been built before.",
			Creates: "a repeated key returns the first app instead of creating another",
			Status:  http.StatusCreated, Location: "path of the app",
			Bodies: []example{{"shop", "React with Vite and Tailwind", `{"name": "shop"}`}},
		}, a.create),
		paged(Route{Pattern: "GET " + appPath, ID: "list-apps", Summary: "List apps", Text: "The newest come first.", Access: look}, paging(service, engi.Apps.List), a.of, func(x v1.App) string { return x.ID }),
		fetch(Route{Pattern: "GET " + one, ID: "get-app", Summary: "Get an app", Access: look}, func(c *call, in *anApp) (v1.App, error) {
			return to(a.of)(a.Get(c, c.viewer(), in.ID))
		}),
		act(Route{Pattern: "DELETE " + one, ID: "remove-app", Summary: "Delete an app and its history", Access: change},
			func(c *call, in *anApp, _ none) error { return a.Remove(c, c.viewer(), in.ID) }),
		fetch(Route{
			Pattern: "POST " + one + "/open", ID: "open-app", Summary: "Open an app", Access: change,
			Text: "Answers once the app's server responds, in the app's sandbox or in a new one with the files of the last revision.",
		}, func(c *call, in *anApp) (v1.App, error) { return to(a.of)(a.Open(c, c.viewer(), in.ID)) }),
		fetch(Route{
			Pattern: "POST " + one + "/stop", ID: "stop-app", Summary: "Stop an app", Access: change,
			Text: "Destroys the app's sandbox and keeps its files and history. Of an app in a directory of a workspace, it ends only the server. Stopping an app twice is no error.",
		}, func(c *call, in *anApp) (v1.App, error) {
			if err := a.Stop(c, c.viewer(), in.ID); err != nil {
				return v1.App{}, err
			}
			return to(a.of)(a.Get(c, c.viewer(), in.ID))
		}),
		raw(Route{
			Pattern: "POST " + one + "/apply", ID: "apply-to-app", Summary: "Apply a model's text to an app", Access: change,
			Text: "The files, edits, packages and commands in the text of a model become one revision, or nothing changes. " +
				"Send the text as a member of a JSON object, or as a text/plain body. The apply continues after the answer; watch the app to follow it. " +
				"With an Accept header for SSE or NDJSON, the answer is the stream of this apply, and its last event is done or error. While another apply is running, the answer is a conflict.",
			Creates: "a repeated key returns the first apply and starts nothing",
			Bodies:  []example{{"file", "one file", `{"text": "<file path=\"src/App.jsx\">\nexport default function App() { return <h1>Hello</h1> }\n</file>"}`}},
			Uploads: []string{"text/plain"},
			Answers: append([]answer{jsonOf[v1.Applying](http.StatusAccepted, nil)}, streamOf[v1.AppUpdate](nil, httpio.SSE, httpio.NDJSON)...),
		}, a.apply),
		raw(Route{
			Pattern: "POST " + one + "/edit", ID: "edit-app", Summary: "Edit an app with a model", Access: change,
			Text: "Sends the prompt, the app's manifest and the relevant files to a model, applies the model's answer, and reports the problems back to the model " +
				"until the app has none or a limit is reached. Each round is an apply of its own. With several attempts, each runs in a branch of the app, and the files of the best branch become the next revision. The edit continues after the answer; watch the app to follow it. " +
				"With an Accept header for SSE or NDJSON, the answer is the stream of this edit, and its last event is edited. While another change of the app is running, the answer is a conflict.",
			Creates: "a repeated key returns the first edit and starts nothing",
			Bodies:  []example{{"cart", "a wish", `{"prompt": "Add a cart that keeps what is in it", "max_rounds": 5}`}, {"attempts", "three attempts, and who compares them", `{"prompt": "Make it fast", "attempts": 3, "judge": {"command": "npm test"}}`}},
			Answers: append([]answer{jsonOf[v1.Applying](http.StatusAccepted, nil)}, streamOf[v1.AppUpdate](nil, httpio.SSE, httpio.NDJSON)...),
		}, a.edit),
		act(Route{
			Pattern: "POST " + one + "/cancel", ID: "cancel-apply", Summary: "Cancel the running apply or edit", Access: change,
			Text: "A cancelled apply changes nothing. A cancelled edit keeps the applies that have ended. If neither is running, the answer is a conflict.",
		}, func(c *call, in *anApp, _ none) error { return a.Cancel(c, c.viewer(), in.ID) }),
		raw(Route{
			Pattern: "GET " + one + "/stream", ID: "watch-app", Summary: "Watch an app", Access: look,
			Text: "Streams the app's events as they happen. Without after, the first event is the app's current state. A client that reconnects with the seq of the last event it received misses only " +
				"lines of output and receives nothing twice, also after a restart of the node.",
			Answers: streamOf[v1.AppUpdate](nil, httpio.SSE, httpio.NDJSON),
		}, a.watch),
		send(Route{
			Pattern: "POST " + one + "/rollback", ID: "roll-back-app", Summary: "Roll an app back to an earlier revision", Access: change, Optional: true,
			Text: "Creates a new revision with the files of an earlier one; it can be rolled back too. With snapshot, a new sandbox that starts from the snapshot " +
				"of that revision replaces the old sandbox, so that databases and processes are restored too; the preview keeps its address. Answers once the app's server responds. While an apply is running, the answer is a conflict.",
		}, a.rollback),
		paged(Route{Pattern: "GET " + one + "/revisions", ID: "list-app-revisions", Summary: "List the revisions of an app", Text: "The newest come first.", Access: look},
			func(c *call, in *listRevisions, p engi.Paging) ([]engi.Revision, error) {
				return a.Revisions(c, c.viewer(), in.ID, p)
			}, revisionOf, func(x v1.AppRevision) string { return strconv.FormatInt(x.Number, 10) }),
		raw(Route{
			Pattern: "GET " + one + "/diff", ID: "diff-app", Summary: "Compare two revisions of an app", Access: look,
			Text: "Returns a unified diff in git's format.", Answers: []answer{bytesOf(http.StatusOK, textType, nil)},
		}, a.diff),
		fetch(Route{Pattern: "GET " + one + "/files/list", ID: "list-app-files", Summary: "List the files of an app", Text: "Lists the files of a revision. The app needs no sandbox for this.", Access: look}, a.list),
		raw(fileRoute(downloadFile, one, "get-app-file", look), a.file),
		fetch(Route{
			Pattern: "GET " + one + "/manifest", ID: "get-app-manifest", Summary: "Get the manifest of an app", Access: look,
			Text: "Returns the imports, exports, components, routes, style sheets and packages of a revision, as its source code has them. The app needs no sandbox for this.",
		}, a.manifest),
		raw(Route{
			Pattern: "GET " + one + "/zip", ID: "get-app-zip", Summary: "Download the files of an app", Access: look,
			Answers: []answer{bytesOf(http.StatusOK, "application/zip", nil)},
		}, a.zip),
		fetch(Route{
			Pattern: "GET " + one + "/logs", ID: "get-app-logs", Summary: "Get the log of an app's server", Access: look,
			Text: "Returns the end of the log and the problems found in it. If the app is stopped, the answer is a conflict.",
		}, func(c *call, in *getAppLogs) (v1.AppLogs, error) {
			x, err := a.Logs(c, c.viewer(), in.ID, in.After, in.Max)
			out := v1.AppLogs{Text: strings.ToValidUTF8(x.Text, "\uFFFD"), Truncated: x.Truncated, Mark: x.Mark, Faults: []v1.AppFault{}}
			for _, f := range x.Faults {
				out.Faults = append(out.Faults, v1.AppFault(f))
			}
			return out, err
		}),
		fetch(Route{Pattern: "GET " + one + "/status", ID: "get-app-status", Summary: "Check an app's health", Text: "Sends a request to the app's server, if the app has a sandbox.", Access: look}, a.status),
	}...)}
}

const textType = "text/plain; charset=utf-8"

func (a *apps) create(c *call, _ *none, q v1.AppRequest) (v1.App, error) {
	var check checker
	check.text("name", q.Name)
	check.text("template", q.Template)
	check.text("workspace", q.Workspace)
	check.text("directory", q.Directory)
	check.text("start", q.Start)
	check.Metadata("metadata", q.Metadata)
	check.Env("env", q.Env)
	spec := engi.AppSpec{Owner: c.owner(), Name: q.Name, Template: q.Template, Workspace: q.Workspace, Directory: q.Directory, Start: q.Start, Port: q.Port, Replace: q.Replace, Metadata: q.Metadata, Env: q.Env, Idempotency: c.key}
	if q.Network != nil {
		spec.Network = networkOf(&check, "network", q.Network)
	}
	if err := check.err(); err != nil {
		return v1.App{}, err
	}
	x, err := a.Create(c, spec)
	if err == nil {
		c.location(appPath, string(x.ID))
	}
	return a.of(x), err
}

func (a *apps) apply(c *call, in *anApp, q v1.ApplyRequest) error {
	return a.answer(c, in.ID, func() (int64, error) { return a.begin(c, in.ID, q) }, func(x engi.AppUpdate, seq int64) bool {
		return x.Apply == seq && (x.Kind == engi.AppApplied || x.Kind == engi.AppApplyFailed)
	})
}

func (a *apps) edit(c *call, in *anApp, q v1.EditRequest) error {
	return a.answer(c, in.ID, func() (int64, error) { return a.beginEdit(c, in.ID, q) }, func(x engi.AppUpdate, seq int64) bool {
		return x.Edit == seq && x.Kind == engi.AppEdited
	})
}

// answer calls begin and answers with the seq that it returns, or with the updates up to
// the one for which last returns true.
func (a *apps) answer(c *call, app string, begin func() (int64, error), last func(engi.AppUpdate, int64) bool) error {
	if c.form != httpio.JSON {
		leave, err := c.s.watches.Join("owner " + string(c.auth.Owner))
		if err != nil {
			return err
		}
		defer leave()
	}
	seq, err := begin()
	switch {
	case err != nil:
		return err
	case c.form == httpio.JSON:
		return c.reply(http.StatusAccepted, v1.Applying{Seq: seq})
	}
	return a.stream(c, app, seq-1, nil, func(x engi.AppUpdate) bool { return last(x, seq) })
}

// beginEdit starts an edit.
func (a *apps) beginEdit(c *call, app string, q v1.EditRequest) (seq int64, err error) {
	var check checker
	if !(q.MaxCost >= 0 && q.MaxCost <= 1e9) {
		check.addf("max_cost", "it is not between 0 and a billion")
	}
	spec := engi.EditSpec{Viewer: c.viewer(), App: app, Prompt: q.Prompt, Model: q.Model, Rounds: q.MaxRounds, MaxCost: int64(q.MaxCost * 1e6), Actor: c.auth.ID, Idempotency: c.key}
	if q.MaxCost > 0 && spec.MaxCost == 0 {
		spec.MaxCost = 1
	}
	spec.Attempts, spec.Keep = q.Attempts, q.Keep
	if j := q.Judge; j != nil {
		spec.Judge = &engi.AppJudge{Command: j.Command, Model: j.Model, Criteria: j.Criteria}
	}
	if e := q.Element; e != nil {
		spec.Element = &engi.AppElement{Selector: e.Selector, Text: e.Text, HTML: e.HTML, Path: e.Path, Line: e.Line}
	}
	check.also(spec.Faults())
	if err := check.err(); err != nil {
		return 0, err
	}
	return a.Edit(c, spec)
}

// begin starts an apply. The body is released when it returns.
func (a *apps) begin(c *call, app string, q v1.ApplyRequest) (seq int64, err error) {
	if c.uploads() {
		body, err := c.readBody()
		if err != nil {
			return 0, err
		}
		defer c.free(body)
		q.Text = string(body)
	}
	return a.Apply(c, engi.ApplySpec{Viewer: c.viewer(), App: app, Text: q.Text, Message: q.Message, Actor: c.auth.ID, Keep: q.Keep, Snapshot: q.Snapshot, Idempotency: c.key})
}

func (a *apps) watch(c *call, in *watchApp, _ none) error {
	after, err := lastEvent(in.LastEvent, in.After)
	if err != nil {
		return err
	}
	var first *engi.AppUpdate
	if after < 0 {
		if after, err = a.events.Last(c); err != nil {
			return err
		}
	}
	x, err := a.Get(c, c.viewer(), in.ID) // the stream has not started
	if err != nil {
		return err
	}
	if in.After < 0 && in.LastEvent == "" {
		first = &engi.AppUpdate{Kind: engi.AppStateChanged, Seq: after, Time: x.Used, State: x.State, Revision: x.Revision, Apply: x.Applying, Edit: x.Editing}
	}
	leave, err := c.s.watches.Join("owner " + string(c.auth.Owner))
	if err != nil {
		return err
	}
	defer leave()
	return a.stream(c, string(x.ID), after, first, func(engi.AppUpdate) bool { return false })
}

// stream answers with the updates of an app after a seq, up to the one for which last
// returns true.
func (a *apps) stream(c *call, app string, after int64, first *engi.AppUpdate, last func(engi.AppUpdate) bool) error {
	return stream(c, func(ctx context.Context) iter.Seq2[engi.AppUpdate, error] {
		return func(yield func(engi.AppUpdate, error) bool) {
			if first == nil || yield(*first, nil) {
				a.Watch(ctx, c.viewer(), app, after)(yield)
			}
		}
	}, func(out *httpio.EventWriter, x engi.AppUpdate) (bool, error) {
		seq := ""
		if x.Seq > 0 {
			seq = atOffset(x.Seq)
		}
		return last(x), out.Send(string(x.Kind), seq, a.updateOf(x))
	}, func(kind string, p *v1.Problem) any { return v1.AppUpdate{Type: kind, Error: p} })
}

func (a *apps) rollback(c *call, in *anApp, q v1.RollbackRequest) (v1.AppRevision, error) {
	if q.Snapshot {
		return to(revisionOf)(a.Restore(c, c.viewer(), in.ID, q.Revision))
	}
	if q.Revision == 0 {
		last, err := a.Revisions(c, c.viewer(), in.ID, engi.Paging{Limit: 1})
		switch {
		case err != nil:
			return v1.AppRevision{}, err
		case len(last) == 0 || last[0].Parent == 0:
			return v1.AppRevision{}, engi.Errorf(engi.Conflict, "app %.80q has no revision before its last one", in.ID).WithRemedy("apply something first")
		}
		q.Revision = last[0].Parent
	}
	return to(revisionOf)(a.Rollback(c, c.viewer(), in.ID, q.Revision))
}

func (a *apps) diff(c *call, in *diffApp, _ none) error {
	text, err := a.Diff(c, c.viewer(), in.ID, in.From, in.To)
	if err != nil {
		return err
	}
	c.replyText(text)
	return nil
}

// replyText answers with the text that a program printed.
func (c *call) replyText(text string) {
	h := c.Header()
	h.Set("Content-Type", textType)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = io.Copy(httpio.DeadlineWriter{W: c}, strings.NewReader(text)) // an error means that the caller has left
}

// files returns the files of a revision. It stores the revision's number in in, so that
// later reads are of the same revision.
func (a *apps) files(c *call, in *ofRevision) ([]engi.AppFile, error) {
	x, err := a.Get(c, c.viewer(), in.ID)
	if err != nil {
		return nil, err
	}
	if in.Revision == 0 {
		in.Revision = x.Revision
	}
	return a.Files(c, c.viewer(), in.ID, in.Revision)
}

func (a *apps) file(c *call, in *getAppFile, _ none) error {
	all, err := a.files(c, &in.ofRevision)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(f engi.AppFile) bool { return f.Path == in.Path })
	if i < 0 {
		return engi.Errorf(engi.NotFound, "revision %d of app %s has no file %.100q", in.Revision, in.ID, in.Path).WithRemedy("list its files")
	}
	f, err := a.File(c, c.viewer(), in.ID, in.Path, in.Revision)
	if err != nil {
		return err
	}
	defer f.Close()
	d, cancel := c.guest()
	defer cancel()
	return d.Download(in.Path, f, all[i].Size)
}

func (a *apps) list(c *call, in *listAppFiles) (v1.AppFiles, error) {
	all, err := a.files(c, &in.ofRevision)
	if err != nil {
		return v1.AppFiles{}, err
	}
	wanted := strings.Trim(in.Path, "/")
	if _, err := path.Match(wanted, ""); err != nil {
		return v1.AppFiles{}, invalid("query.path", "it is not a pattern: %v", err)
	}
	out, left := v1.AppFiles{Revision: in.Revision, Items: []v1.AppFile{}}, int64(maxAppContent)
	for _, f := range all {
		matches, _ := path.Match(wanted, f.Path) // the pattern was checked above
		switch {
		case wanted != "" && !matches && !strings.HasPrefix(f.Path, wanted+"/"):
		case len(in.Extensions) > 0 && !slices.ContainsFunc(in.Extensions, func(e string) bool { return e != "" && strings.HasSuffix(f.Path, e) }):
		case in.MaxSize > 0 && f.Size > in.MaxSize:
		default:
			item := v1.AppFile{Path: strings.ToValidUTF8(f.Path, "\uFFFD"), Size: v1.Bytes(f.Size), Mode: v1.Mode(f.Mode), SHA256: f.Digest, Since: f.Since}
			if in.Content && f.Size > left {
				out.Truncated = true
			} else if in.Content {
				left -= f.Size
				if err := a.content(c, in, f, &item); err != nil {
					return v1.AppFiles{}, err
				}
			}
			out.Items = append(out.Items, item)
		}
	}
	return out, nil
}

// content adds the content of a file to its description.
func (a *apps) content(c *call, in *listAppFiles, f engi.AppFile, to *v1.AppFile) error {
	r, err := a.File(c, c.viewer(), in.ID, f.Path, in.Revision)
	if err != nil {
		return err
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(r, f.Size)); err != nil {
		return engi.Errorf(engi.Unavailable, "read %s of app %s: %v", f.Path, in.ID, err)
	}
	if utf8.Valid(b.Bytes()) {
		to.Content = new(b.String())
	} else {
		to.ContentBase64 = b.Bytes()
	}
	return nil
}

func (a *apps) zip(c *call, in *ofRevision, _ none) error {
	x, err := a.Get(c, c.viewer(), in.ID)
	if err != nil {
		return err
	}
	ctx, cancel := c.waiting()
	defer cancel()
	h := c.Header()
	h.Set("Content-Type", "application/zip")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": x.Name + ".zip"}))
	err = a.Zip(ctx, c.viewer(), in.ID, in.Revision, httpio.DeadlineWriter{W: c})
	if c.gone() {
		return nil
	}
	return orEnded(ctx, err)
}

func (a *apps) status(c *call, in *anApp) (v1.AppStatus, error) {
	x, err := a.Status(c, c.viewer(), in.ID)
	alerts := make([]v1.AppAlert, len(x.Alerts))
	for i, y := range x.Alerts {
		alerts[i] = v1.AppAlert{Metric: y.Metric, Value: y.Value, Limit: y.Limit, Action: string(y.Action), Text: y.Text, Since: y.Since.UTC(), Seq: y.Seq}
	}
	return v1.AppStatus{
		App: a.of(x.App), Healthy: x.Healthy, CheckedAt: moment(x.Checked), Latency: length(x.Latency), Startup: length(x.Startup), Memory: v1.Bytes(max(0, x.Memory)),
		Files: x.Files, CacheHits: x.CacheHits, Errors: x.Errors, FileTime: length(x.FileTime), Alerts: alerts,
	}, err
}

func (a *apps) of(x engi.App) v1.App {
	out := v1.App{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, Template: x.Template, State: string(x.State), SandboxID: string(x.Sandbox), Port: x.Port,
		Revision: x.Revision, Applying: x.Applying, Editing: x.Editing, Error: problemOf(x.Error), Metadata: x.Metadata, CreatedAt: x.Created.UTC(), UsedAt: moment(x.Used),
		Published: a.published(x), AttemptOf: string(x.AttemptOf), WorkspaceID: string(x.Workspace), Directory: x.Directory, Start: x.Start,
	}
	if x.Sandbox != "" && a.ports != nil {
		out.PreviewURL = a.ports.AppURL(x.ID, x.Port)
	}
	return out
}

func revisionOf(x engi.Revision) v1.AppRevision {
	out := v1.AppRevision{
		Number: x.Number, Parent: x.Parent, Of: x.Of, From: string(x.From), Message: strings.ToValidUTF8(x.Message, "\uFFFD"), Actor: x.Actor, Commit: x.Commit, CreatedAt: x.Created.UTC(),
		Changed: listOf(x.Changed, changeOf).Items,
	}
	if k := x.Snapshot; k.ID != "" {
		out.Snapshot = &v1.AppSnapshot{ID: string(k.ID), Size: v1.Bytes(k.Bytes), CreatedAt: k.Created.UTC()}
	}
	return out
}

func changeOf(x engi.AppChange) v1.AppChange {
	return v1.AppChange{Path: text(x.Path), Op: string(x.Op), Size: v1.Bytes(max(0, x.Size))}
}

func (a *apps) updateOf(x engi.AppUpdate) v1.AppUpdate {
	out := v1.AppUpdate{
		Type: string(x.Kind), Seq: x.Seq, Time: x.Time.UTC(), Apply: x.Apply, Edit: x.Edit, Step: x.Step, Text: strings.ToValidUTF8(x.Text, "\uFFFD"), Path: strings.ToValidUTF8(x.Path, "\uFFFD"),
		Op: string(x.Op), Name: strings.ToValidUTF8(x.Name, "\uFFFD"), Code: x.Code, Line: x.Line, State: string(x.State), Revision: x.Revision,
		Round: x.Round, Source: x.Source, Cost: float64(x.Cost) / 1e6, Error: problemOf(x.Error), Attempt: x.Attempt, Branch: string(x.Branch), Model: x.Model,
	}
	switch {
	case x.Kind == engi.AppEdited || x.Kind == engi.AppAttempted:
		out.Round, out.Rounds = 0, x.Round
	case x.Kind == engi.AppAttempt && a.ports != nil:
		out.PreviewURL = a.ports.AppURL(x.Branch, x.Port)
	}
	return out
}
