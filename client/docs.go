package client

import (
	"context"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const documents = "/v1/docs"

// AddDocument adds a document to the index and returns when it can be
// found. The same document replaces its earlier version.
func (c *Client) AddDocument(ctx context.Context, q v1.DocumentRequest) (v1.Document, error) {
	return create[v1.Document](ctx, c, documents, q)
}

// Documents returns the caller's documents and the node's, by package and
// title.
func (c *Client) Documents(ctx context.Context) ([]v1.Document, error) {
	return all[v1.Document](ctx, c, documents, nil)
}

// Document returns the record of a document.
func (c *Client) Document(ctx context.Context, id string) (v1.Document, error) {
	return get[v1.Document](ctx, c, documents+segment(id), nil)
}

// RemoveDocument deletes a document from the index.
func (c *Client) RemoveDocument(ctx context.Context, id string) error {
	return c.remove(ctx, documents+segment(id))
}

// RefreshDocuments reads those of the caller's documents again whose source has
// changed, and returns all checked documents.
func (c *Client) RefreshDocuments(ctx context.Context) ([]v1.Document, error) {
	all, err := send[v1.List[v1.Document]](ctx, c, http.MethodPost, documents+"/refresh", nil)
	return all.Items, err
}

// RefreshDocument reads a document again if it has changed.
func (c *Client) RefreshDocument(ctx context.Context, id string) (v1.Document, error) {
	return send[v1.Document](ctx, c, http.MethodPost, documents+segment(id)+"/refresh", nil)
}

// SearchDocuments returns the pieces of documents, and the modules, that best
// answer a question.
func (c *Client) SearchDocuments(ctx context.Context, q v1.SearchRequest) (v1.Finding, error) {
	return get[v1.Finding](ctx, c, documents+"/search",
		set("query", q.Query, "package", q.Package, "session", q.Session, "mode", q.Mode, "limit", number(q.Limit)))
}

// DocumentPackages returns the packages that have documents, by name.
func (c *Client) DocumentPackages(ctx context.Context) ([]v1.DocumentPackage, error) {
	return list[v1.DocumentPackage](ctx, c, documents+"/packages", nil)
}

// SaveModules describes files of a session as modules, and returns all
// modules that the session finds.
func (c *Client) SaveModules(ctx context.Context, session string, modules []v1.CodeModuleRequest) ([]v1.CodeModule, error) {
	all, err := send[v1.List[v1.CodeModule]](ctx, c, http.MethodPost, sessions+segment(session)+"/modules", v1.CodeModulesRequest{Modules: modules})
	return all.Items, err
}

// SessionModules returns the modules that a session finds.
func (c *Client) SessionModules(ctx context.Context, session string) ([]v1.CodeModule, error) {
	return list[v1.CodeModule](ctx, c, sessions+segment(session)+"/modules", nil)
}

// Modules returns the modules that all sessions of the caller find.
func (c *Client) Modules(ctx context.Context) ([]v1.CodeModule, error) {
	return list[v1.CodeModule](ctx, c, "/v1/modules", nil)
}
