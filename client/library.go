package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/engi-dev/engi/api/v1"
)

const documents = "/v1/docs"

// AddDocument takes a document into the library and returns once it can be
// found. The same document again replaces the first.
func (c *Client) AddDocument(ctx context.Context, q v1.DocumentRequest) (v1.Document, error) {
	return get[v1.Document](ctx, c, &call{method: http.MethodPost, path: documents, body: encode(q)})
}

// Documents returns the caller's documents and the node's, by package and
// title.
func (c *Client) Documents(ctx context.Context) ([]v1.Document, error) {
	list, err := get[v1.List[v1.Document]](ctx, c, &call{method: http.MethodGet, path: documents})
	return list.Items, err
}

// Document returns what is known of a document.
func (c *Client) Document(ctx context.Context, id string) (v1.Document, error) {
	return get[v1.Document](ctx, c, &call{method: http.MethodGet, path: documents + segment(id)})
}

// RemoveDocument makes the library forget a document.
func (c *Client) RemoveDocument(ctx context.Context, id string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: documents + segment(id)})
}

// RefreshDocuments reads those of the caller's documents again that have
// changed where they were fetched from, and returns all that were looked at.
func (c *Client) RefreshDocuments(ctx context.Context) ([]v1.Document, error) {
	list, err := get[v1.List[v1.Document]](ctx, c, &call{method: http.MethodPost, path: documents + "/refresh"})
	return list.Items, err
}

// RefreshDocument reads a document again if it has changed.
func (c *Client) RefreshDocument(ctx context.Context, id string) (v1.Document, error) {
	return get[v1.Document](ctx, c, &call{method: http.MethodPost, path: documents + segment(id) + "/refresh"})
}

// SearchDocuments returns the pieces of documents, and the modules, that
// answer a question best.
func (c *Client) SearchDocuments(ctx context.Context, q v1.SearchRequest) (v1.Finding, error) {
	query := url.Values{"query": {q.Query}}
	for name, value := range map[string]string{"package": q.Package, "session": q.Session, "mode": q.Mode} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if q.Limit != 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	return get[v1.Finding](ctx, c, &call{method: http.MethodGet, path: documents + "/search", query: query})
}

// DocumentPackages returns what documents are about, by name.
func (c *Client) DocumentPackages(ctx context.Context) ([]v1.DocumentPackage, error) {
	list, err := get[v1.List[v1.DocumentPackage]](ctx, c, &call{method: http.MethodGet, path: documents + "/packages"})
	return list.Items, err
}

// SaveModules says what files of a session are good for, and returns all
// modules that it finds.
func (c *Client) SaveModules(ctx context.Context, session string, modules []v1.CodeModuleRequest) ([]v1.CodeModule, error) {
	list, err := get[v1.List[v1.CodeModule]](ctx, c, &call{
		method: http.MethodPost, path: sessions + segment(session) + "/modules", body: encode(v1.CodeModulesRequest{Modules: modules}),
	})
	return list.Items, err
}

// SessionModules returns the modules that a session finds.
func (c *Client) SessionModules(ctx context.Context, session string) ([]v1.CodeModule, error) {
	list, err := get[v1.List[v1.CodeModule]](ctx, c, &call{method: http.MethodGet, path: sessions + segment(session) + "/modules"})
	return list.Items, err
}

// Modules returns the modules that all sessions of the caller find.
func (c *Client) Modules(ctx context.Context) ([]v1.CodeModule, error) {
	list, err := get[v1.List[v1.CodeModule]](ctx, c, &call{method: http.MethodGet, path: "/v1/modules"})
	return list.Items, err
}
