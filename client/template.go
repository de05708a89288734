package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const templates = "/v1/templates"

// Templates returns all templates, including those that are not built yet.
func (c *Client) Templates(ctx context.Context) ([]v1.Template, error) {
	return list[v1.Template](ctx, c, templates, nil)
}

// Template returns a built template by name or digest.
func (c *Client) Template(ctx context.Context, name string) (v1.Template, error) {
	return get[v1.Template](ctx, c, templates+segment(name), nil)
}

// BuildTemplate builds a template and yields the progress; the last event is
// of type result and has the template. The end of the loop or of ctx
// cancels the build; finished steps stay cached. It needs an admin key.
func (c *Client) BuildTemplate(ctx context.Context, q v1.TemplateRequest) iter.Seq2[v1.BuildUpdate, error] {
	q.Async = false
	x := &call{method: http.MethodPost, path: templates, body: q, header: ndjson()}
	return events(ctx, c, x, "try again; finished steps are cached",
		func(e v1.BuildUpdate) (string, *v1.Problem) { return e.Type, e.Error }, func(e v1.BuildUpdate) bool { return e.Type == v1.EventResult })
}

// StartBuild starts to build a template and returns the operation at once. A
// broken connection starts no second build. It needs an admin key.
func (c *Client) StartBuild(ctx context.Context, q v1.TemplateRequest) (v1.Operation, error) {
	q.Async = true
	return create[v1.Operation](ctx, c, templates, q)
}

// RemoveTemplate deletes a template. It needs an admin key.
func (c *Client) RemoveTemplate(ctx context.Context, name string) error {
	return c.remove(ctx, templates+segment(name))
}

// PruneTemplates deletes builds that no template refers to, and returns the
// number of freed bytes. It needs an admin key.
func (c *Client) PruneTemplates(ctx context.Context) (v1.Bytes, error) {
	p, err := send[v1.Pruned](ctx, c, http.MethodPost, templates+"/prune", nil)
	return p.Freed, err
}
