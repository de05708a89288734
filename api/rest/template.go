package rest

import (
	"context"
	"iter"
	"net/http"
	"strings"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	"github.com/engi-dev/engi/api/v1"
)

const templatePath = "/v1/templates"

type templates struct{ engi.Templates }

type aTemplate struct {
	Name string `path:"name" maxLength:"200" doc:"of the template, or its digest"`
}

// Templates builds root file systems that sandboxes start from.
func Templates(service engi.Templates) Resource {
	t := &templates{service}
	const one = templatePath + "/{name}"
	built := jsonOf[v1.Template](http.StatusOK, nil)
	return Resource{tag: "templates", about: "root file systems that sandboxes start from", routes: []Route{
		list(Route{Pattern: "GET " + templatePath, ID: "list-templates", Summary: "List templates", Text: "Definitions that were not built yet are in the list too.", Access: reads(engi.ScopeTemplates), Objects: Shared},
			func(c *call, _ *none) ([]engi.Template, error) { return t.List(c) }, templateOf),
		fetch(Route{Pattern: "GET " + one, ID: "get-template", Summary: "Get a template", Access: reads(engi.ScopeTemplates), Objects: Shared},
			func(c *call, in *aTemplate) (v1.Template, error) {
				if err := checkTemplateName("path.name", in.Name); err != nil {
					return v1.Template{}, err
				}
				return to(templateOf)(t.Get(c, in.Name))
			}),
		raw(Route{
			Pattern: "POST " + templatePath, ID: "build-template", Summary: "Build a template", Access: adminOnly, Objects: Shared,
			Text:    "Answers when it is built, or with a stream of progress, by Accept. Nothing is done if nothing changed. A caller that leaves cancels the build; finished steps stay cached. Needs an admin key.",
			Bodies:  []example{{"built-in", "a built-in template", `{"name": "base"}`}},
			Answers: append([]answer{built}, streamOf[v1.BuildEvent](nil, httpio.SSE, httpio.NDJSON)...),
		}, t.build),
		act(Route{Pattern: "DELETE " + one, ID: "remove-template", Summary: "Remove a template", Text: "Is refused while sandboxes use it. Needs an admin key.", Access: adminOnly, Objects: Shared},
			func(c *call, in *aTemplate, _ none) error {
				if err := checkTemplateName("path.name", in.Name); err != nil {
					return err
				}
				return t.Remove(c, in.Name)
			}),
		fetch(Route{Pattern: "POST " + templatePath + "/prune", ID: "prune-templates", Summary: "Delete builds no template refers to", Text: "Needs an admin key.", Access: adminOnly, Objects: Shared},
			func(c *call, _ *none) (v1.Pruned, error) {
				freed, err := t.Prune(c)
				return v1.Pruned{Freed: v1.Bytes(max(0, freed))}, err
			}),
	}}
}

// checkTemplateName keeps out what could never be a name; what can is the
// templates' own business.
func checkTemplateName(field, name string) error {
	if name == "" || len(name) > 200 || strings.ContainsAny(name, "/\\\x00") || strings.HasPrefix(name, ".") {
		return invalid(field, "this cannot be the name of a template")
	}
	return nil
}

func (t *templates) build(c *call, _ *none, q v1.TemplateRequest) error {
	if err := checkTemplateName("name", q.Name); err != nil {
		return err
	}
	var definition []byte // nil asks for a built-in one
	if q.Definition != "" {
		definition = []byte(q.Definition)
	}
	if c.form != httpio.JSON {
		return t.stream(c, q.Name, definition)
	}
	ctx, cancel := c.waiting()
	defer cancel()
	x, err := t.Build(ctx, q.Name, definition, func(engi.BuildEvent) {})
	if err != nil {
		return orLeaving(ctx, err)
	}
	return c.reply(http.StatusOK, templateOf(x))
}

// stream builds while telling how far it is. Whoever leaves cancels the build;
// finished steps stay cached.
func (t *templates) stream(c *call, name string, definition []byte) error {
	ctx, cancel := c.waiting()
	defer c.gone()
	return httpio.Stream[v1.BuildEvent]{
		W: c, Form: c.form, Beat: c.s.beat, Patience: -1, Describe: c.tell,
		Each: func(out *httpio.EventWriter, e v1.BuildEvent) (bool, error) {
			return e.Type == v1.EventResult, out.Send(e.Type, "", e)
		},
		Mark: func(kind string, p *v1.Problem) any { return v1.BuildEvent{Type: kind, Error: p} },
	}.Serve(ctx, cancel, t.events(ctx, name, definition))
}

// events yields the progress of a build, and its result.
func (t *templates) events(ctx context.Context, name string, definition []byte) iter.Seq2[v1.BuildEvent, error] {
	return func(yield func(v1.BuildEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		left := false
		x, err := t.Build(ctx, name, definition, func(e engi.BuildEvent) {
			if !left && !yield(buildEventOf(e), nil) {
				left = true
				cancel()
			}
		})
		if !left {
			yield(v1.BuildEvent{Type: v1.EventResult, Template: new(templateOf(x))}, orLeaving(ctx, err))
		}
	}
}

// templateOf leaves out where the template lies on the host.
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

func buildEventOf(x engi.BuildEvent) v1.BuildEvent {
	e := v1.BuildEvent{Type: "progress", Step: x.Step, Steps: x.Steps, Name: x.Name, Done: x.Done, Total: x.Total}
	if x.Log != "" {
		e.Type, e.Log = "log", strings.ToValidUTF8(x.Log, "\uFFFD")
	}
	return e
}
