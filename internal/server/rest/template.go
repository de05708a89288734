package rest

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const templatePath = "/v1/templates"

type templates struct {
	engi.Templates
	operations engi.Operations
}

type aTemplate struct {
	Name string `path:"name" maxLength:"200" doc:"Name or digest of the template"`
}

// Templates returns the routes of templates: root file systems of sandboxes. Builds are
// operations.
func Templates(service engi.Templates, operations engi.Operations) Resource {
	t := &templates{service, operations}
	const one = templatePath + "/{name}"
	built, later := jsonOf[v1.Template](http.StatusOK, nil), jsonOf[v1.Operation](http.StatusAccepted, nil)
	later.headers = map[string]string{"Location": "path of the operation"}
	return Resource{tag: "templates", about: "root file systems that sandboxes start from", routes: []Route{
		list(Route{Pattern: "GET " + templatePath, ID: "list-templates", Summary: "List templates", Text: "Includes definitions that have not been built.", Access: reads(engi.ScopeTemplates), Objects: Shared},
			t.list, templateOf),
		fetch(Route{Pattern: "GET " + one, ID: "get-template", Summary: "Get a template", Access: reads(engi.ScopeTemplates), Objects: Shared},
			func(c *call, in *aTemplate) (v1.Template, error) {
				if err := checkTemplateName("path.name", in.Name); err != nil {
					return v1.Template{}, err
				}
				x, err := t.Get(c, in.Name)
				if err == nil && !x.VisibleTo(c.viewer()) {
					err = engi.ErrNoTemplate
				}
				return to(templateOf)(x, err)
			}),
		raw(Route{
			Pattern: "POST " + templatePath, ID: "build-template", Summary: "Build a template", Access: adminOnly, Objects: Owned,
			Text: "Answers when the template is built, or, with an Accept header for NDJSON or SSE, with a stream of progress. With async, the answer is 202 at once, with an operation to watch. " +
				"Unchanged templates are not built again. If a waiting client disconnects, the build is cancelled, unless the request had an Idempotency-Key; finished steps stay cached. Needs an admin key.",
			Creates: "a repeated key returns the first build instead of starting another; a build with a key continues if the client disconnects",
			Bodies: []example{
				{"built-in", "a built-in template", `{"name": "base"}`},
				{"later", "without waiting", `{"name": "base", "async": true}`},
			},
			Answers: append([]answer{built, later}, streamOf[v1.BuildUpdate](nil, httpio.SSE, httpio.NDJSON)...),
		}, t.build),
		act(Route{Pattern: "DELETE " + one, ID: "remove-template", Summary: "Delete a template", Text: "A template that sandboxes use is a conflict. Needs an admin key.", Access: adminOnly, Objects: Shared},
			func(c *call, in *aTemplate, _ none) error {
				if err := checkTemplateName("path.name", in.Name); err != nil {
					return err
				}
				return t.Remove(c, in.Name)
			}),
		fetch(Route{Pattern: "POST " + templatePath + "/prune", ID: "prune-templates", Summary: "Delete unused template builds", Text: "Needs an admin key.", Access: adminOnly, Objects: Shared},
			func(c *call, _ *none) (v1.Pruned, error) {
				freed, err := t.Prune(c)
				return v1.Pruned{Freed: v1.Bytes(max(0, freed))}, err
			}),
	}}
}

// checkTemplateName refuses a text that cannot be a name; the service
// checks the rest.
func checkTemplateName(field, name string) error {
	if name == "" || len(name) > 200 || strings.ContainsAny(name, "/\\\x00") || strings.HasPrefix(name, ".") {
		return invalid(field, "this cannot be the name of a template")
	}
	return nil
}

// list returns the node's templates and the caller's.
func (t *templates) list(c *call, _ *none) ([]engi.Template, error) {
	all, err := t.List(c)
	return slices.DeleteFunc(all, func(x engi.Template) bool { return !x.VisibleTo(c.viewer()) }), err
}

func (t *templates) build(c *call, in *prefer, q v1.TemplateRequest) error {
	if err := checkTemplateName("name", q.Name); err != nil {
		return err
	}
	input, err := json.Marshal(engi.BuildTemplateInput{Definition: q.Definition})
	if err != nil {
		return err // unreachable: the document consists of text
	}
	q.Async = q.Async || in.async()
	op, err := once(c, q, idempotency.Creation[engi.Operation]{
		IDs: []string{string(engi.NewOperationID())},
		Work: func(ids []string) (engi.Operation, error) {
			return t.operations.Start(c, engi.OperationSpec{
				ID: idempotency.FirstID[engi.OperationID](ids), Owner: c.owner(), Type: engi.OperationBuildTemplate, Subject: q.Name, Input: input,
			})
		},
		Find: func(ids []string, _ bool) (engi.Operation, error) {
			return t.operations.Get(c, c.viewer(), engi.OperationID(ids[0]))
		},
	})
	if err != nil {
		return err
	}
	if q.Async {
		c.location(operationPath, string(op.ID))
		return c.reply(http.StatusAccepted, operationOf(op))
	}
	defer t.abandon(c, op.ID)
	if c.form != httpio.JSON {
		return t.stream(c, op.ID)
	}
	ctx, cancel := c.waiting()
	defer cancel()
	if op, err = t.operations.Wait(ctx, c.viewer(), op.ID); err != nil {
		return orEnded(ctx, err)
	}
	x, err := t.result(c, op)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, x)
}

// abandon cancels a build whose caller has left, unless the caller can ask again.
func (t *templates) abandon(c *call, id engi.OperationID) {
	if !c.gone() || c.key != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), cancelTime)
	defer cancel()
	if err := t.operations.Cancel(ctx, c.viewer(), id); err != nil {
		c.logInternal(engi.Errorf(engi.Internal, "cancel %s, whose caller left: %w", id, err))
	}
}

// result returns the template of a build, or the error of a failed build.
func (t *templates) result(c *call, op engi.Operation) (v1.Template, error) {
	switch op.State {
	case engi.OperationFailed:
		return v1.Template{}, op.Error
	case engi.OperationCancelled:
		return v1.Template{}, engi.Errorf(engi.Expired, "the build of %s was cancelled", op.Subject).WithRemedy("start it again; finished steps are cached")
	}
	return to(templateOf)(t.Get(c, op.Subject))
}

// stream sends the progress of a build. An error before the first event
// becomes the answer.
func (t *templates) stream(c *call, id engi.OperationID) error {
	ctx, cancel := c.waiting()
	return httpio.Stream[v1.BuildUpdate]{
		W: c, Format: c.form, Heartbeat: c.s.beat, Grace: -1, Describe: c.tell,
		Each: func(out *httpio.EventWriter, e v1.BuildUpdate) (bool, error) {
			return e.Type == v1.EventResult, out.Send(e.Type, "", e)
		},
		Marker: func(kind string, p *v1.Problem) any { return v1.BuildUpdate{Type: kind, Error: p} },
	}.Serve(ctx, cancel, t.events(ctx, c, id))
}

// events yields the progress of a build, and its result.
func (t *templates) events(ctx context.Context, c *call, id engi.OperationID) iter.Seq2[v1.BuildUpdate, error] {
	return func(yield func(v1.BuildUpdate, error) bool) {
		for e, err := range t.operations.Watch(ctx, c.viewer(), id, 0) {
			last := v1.BuildUpdate{Type: v1.EventResult}
			switch {
			case err != nil:
				yield(last, orEnded(ctx, err))
				return
			case e.Operation != nil:
				x, err := t.result(c, *e.Operation)
				last.Template = &x
				yield(last, err)
				return
			case !yield(buildEventOf(e.Progress), nil):
				return
			}
		}
	}
}

// templateOf converts a template, without its path on the host.
func templateOf(x engi.Template) v1.Template {
	t := v1.Template{
		Name:    x.Name,
		Built:   x.Digest != "",
		Digest:  x.Digest,
		User:    x.User,
		Home:    x.Home,
		WorkDir: x.WorkDir,
		Shell:   x.Shell,
		Env:     x.Env,
		Ports:   x.Ports,
		Private: x.Private,
		Size:    sizeOf(x.Size),
		Bytes:   v1.Bytes(x.Bytes),
		BuiltAt: moment(x.Built),
	}
	for l, i := range x.Languages {
		if t.Languages == nil {
			t.Languages = map[string]v1.Interpreter{}
		}
		t.Languages[string(l)] = v1.Interpreter{Path: i.Path, Warm: i.Warm}
	}
	return t
}

func buildEventOf(x engi.Progress) v1.BuildUpdate {
	e := v1.BuildUpdate{Type: "progress", Step: x.Step, Steps: x.Steps, Name: x.Name, Done: x.Done, Total: x.Total}
	if x.Log != "" {
		if e.Type = "log"; x.Warning {
			e.Type = v1.EventWarning
		}
		e.Log = strings.ToValidUTF8(x.Log, "\uFFFD")
	}
	return e
}
