package rest

import (
	"fmt"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

const documentPath = "/v1/docs"

type documents struct{ engi.Docs }

type aDocument = byID[engi.DocumentID]

type searchDocuments struct {
	Query   string `query:"query" required:"true" minLength:"1" maxLength:"4096" doc:"Question or task, in words"`
	Package string `query:"package" maxLength:"214" doc:"Only documents about this package"`
	Session string `query:"session" maxLength:"128" doc:"ID or name of a session, whose modules are searched too"`
	Mode    string `query:"mode" enum:"hybrid,vector,keyword" doc:"hybrid searches by meaning and by words, vector by meaning, keyword by words; absent means hybrid"`
	Limit   int    `query:"limit" minimum:"1" maximum:"50" default:"5"`
}

// Docs returns the routes of indexed documentation and code modules; service may be
// nil.
func Docs(service engi.Docs) Resource {
	d := &documents{service}
	absent := absentUnless(service != nil, "this node has no docs", "switch it on in its configuration: off = false in section [docs]")
	look, change := reads(engi.ScopeDocs), writes(engi.ScopeDocs)
	return Resource{tag: "docs", about: "documentation and code modules that agents can search", missing: absent, routes: []Route{
		send(Route{
			Pattern: "POST " + documentPath, ID: "add-document", Summary: "Add a document", Access: change, Objects: Owned,
			Text: "Answers once searches find the document. A document with the same package and url (or title, if it has no url) is replaced. Documents that an admin adds without an owner belong to the node, and every owner finds them. " +
				"The node fetches documents by URL only if its operator allows it; text can always be sent.",
			Creates: "a repeated key returns the first document without fetching it again",
			Status:  http.StatusCreated, Location: "address of the document",
		}, d.add),
		paged(Route{Pattern: "GET " + documentPath, ID: "list-documents", Summary: "List documents", Text: "Lists the documents of the caller and of the node, ordered by package and title.", Access: look},
			func(c *call, _ *page, p engi.Paging) ([]engi.Document, error) { return d.Documents(c, c.viewer(), p) }, documentOf, func(x v1.Document) string { return x.ID }),
		fetch(Route{
			Pattern: "GET " + documentPath + "/search", ID: "search-documents", Summary: "Search documents and modules", Access: look,
			Text: "Searches passages of documents by meaning and by words, and saved modules. The answer names the embedding model that was used.",
		}, func(c *call, in *searchDocuments) (v1.Finding, error) {
			x, err := d.Search(c, engi.SearchSpec{
				Viewer: c.viewer(), Session: in.Session, Text: in.Query, Package: in.Package, Mode: engi.SearchMode(in.Mode), Limit: in.Limit,
			})
			return v1.Finding{Hits: listOf(x.Hits, hitOf).Items, Embedder: x.Embedder, Note: x.Note}, err
		}),
		list(Route{Pattern: "GET " + documentPath + "/packages", ID: "list-document-packages", Summary: "List documented packages", Text: "Lists the names of the packages that documents describe.", Access: look},
			listing(service, engi.Docs.Packages),
			func(x engi.DocumentPackage) v1.DocumentPackage { return v1.DocumentPackage(x) }),
		list(Route{
			Pattern: "POST " + documentPath + "/refresh", ID: "refresh-documents", Summary: "Fetch changed documents again", Access: change,
			Text: "Checks the sources of the caller's documents, and fetches the documents that have changed.",
		}, func(c *call, _ *none) ([]engi.Document, error) { return d.Refresh(c, c.viewer(), "") }, documentOf),
		fetch(Route{
			Pattern: "POST " + documentPath + "/{id}/refresh", ID: "refresh-document", Summary: "Fetch a document again", Access: change,
			Text: "If the source cannot be read, the document keeps its older text, and error says why.",
		}, func(c *call, in *aDocument) (v1.Document, error) {
			xs, err := d.Refresh(c, c.viewer(), in.ID)
			if err == nil && len(xs) != 1 {
				err = engi.Errorf(engi.Internal, "refresh %s: %d documents", in.ID, len(xs))
			}
			if err != nil {
				return v1.Document{}, err
			}
			return documentOf(xs[0]), nil
		}),
		fetch(Route{
			Pattern: "GET " + documentPath + "/{id}", ID: "get-document", Summary: "Get a document", Access: look,
			Text: "Returns the record of the document. Use search to read its text.",
		}, func(c *call, in *aDocument) (v1.Document, error) {
			return to(documentOf)(d.find(c, in.ID))
		}),
		act(Route{
			Pattern: "DELETE " + documentPath + "/{id}", ID: "remove-document", Summary: "Delete a document", Access: change,
			Text: "Searches do not find the document any more. Only admins can delete documents of the node.",
		}, ending(service, engi.Docs.Remove)),
		send(Route{
			Pattern: "POST " + sessionPath + "/{id}/modules", ID: "save-modules", Summary: "Save modules of a session", Access: change,
			Text: "Describes files below /workspace so that searches find them. The source stays in the session's volume; with scope user, a copy is kept for the owner's other sessions. " +
				"Answers with all modules that the session can find.",
		}, d.save),
		list(Route{Pattern: "GET " + sessionPath + "/{id}/modules", ID: "list-session-modules", Summary: "List the saved modules that a session finds", Text: "Lists the session's own modules, and the owner's modules of scope user.", Access: look},
			func(c *call, in *aSession) ([]engi.CodeModule, error) { return d.Modules(c, c.viewer(), in.ID) }, moduleOf),
		list(Route{Pattern: "GET /v1/modules", ID: "list-modules", Summary: "List the saved modules of all sessions", Text: "All sessions of the owner find these modules.", Access: look},
			func(c *call, _ *none) ([]engi.CodeModule, error) { return d.Modules(c, c.viewer(), "") }, moduleOf),
	}}
}

func (d *documents) find(c *call, id engi.DocumentID) (engi.Document, error) {
	xs, err := d.Documents(c, c.viewer(), engi.Paging{}, id)
	if err != nil || len(xs) == 1 {
		return append(xs, engi.Document{})[0], err
	}
	return engi.Document{}, engi.Errorf(engi.NotFound, "there is no document %s", id)
}

func (d *documents) add(c *call, _ *none, q v1.DocumentRequest) (v1.Document, error) {
	var check checker
	if q.URL == "" && q.Text == "" {
		check.addf("text", "it is missing: send text, or url")
	}
	for field, text := range map[string]string{"package": q.Package, "title": q.Title, "url": q.URL, "text": q.Text} {
		check.text(field, text)
	}
	if err := check.err(); err != nil {
		return v1.Document{}, err
	}
	// A document of an admin without an owner is visible to all.
	x, err := once(c, q, idempotency.Creation[engi.Document]{
		Work: func([]string) (engi.Document, error) {
			return d.Add(c, engi.DocumentSpec{Owner: c.owner(), Package: q.Package, Title: q.Title, URL: q.URL, Text: q.Text})
		},
		Made: func(x engi.Document) []string { return []string{string(x.ID)} },
		Find: func(ids []string, _ bool) (engi.Document, error) { return d.find(c, engi.DocumentID(ids[0])) },
	})
	if err == nil {
		c.location(documentPath, string(x.ID))
	}
	return documentOf(x), err
}

func (d *documents) save(c *call, in *aSession, q v1.CodeModulesRequest) (v1.List[v1.CodeModule], error) {
	var check checker
	if len(q.Modules) == 0 {
		check.addf("modules", "it is missing")
	}
	var all []engi.CodeModule
	for i, m := range q.Modules {
		field := fmt.Sprintf("modules[%d].", i)
		check.Path(field+"path", m.Path)
		check.oneOf(field+"scope", m.Scope, words(engi.ModuleSession, engi.ModuleUser))
		check.text(field+"description", m.Description)
		check.text(field+"usage", m.Usage)
		all = append(all, engi.CodeModule{Path: m.Path, Description: m.Description, Exports: m.Exports, Usage: m.Usage, Scope: engi.ModuleScope(m.Scope)})
	}
	err := check.err()
	if err == nil {
		err = d.SaveModules(c, c.viewer(), in.ID, all)
	}
	if err != nil {
		return v1.List[v1.CodeModule]{}, err
	}
	xs, err := d.Modules(c, c.viewer(), in.ID)
	return listOf(xs, moduleOf), err
}

func documentOf(x engi.Document) v1.Document {
	return v1.Document{
		ID: string(x.ID), Owner: string(x.Owner), Package: x.Package, Title: x.Title, URL: x.URL, Fetched: x.Fetched, Bytes: v1.Bytes(x.Bytes),
		Chunks: x.Chunks, Digest: x.Digest, State: string(x.State), CheckedAt: x.Checked, ChangedAt: x.Changed, Error: problemOf(x.Error),
	}
}

func hitOf(x engi.SearchHit) v1.Hit {
	out := v1.Hit{DocumentID: string(x.Document), Package: x.Package, Title: x.Title, Headings: x.Headings, URL: x.URL, Text: x.Text, Score: x.Score}
	if x.Module != nil {
		out.Module = new(moduleOf(*x.Module))
	}
	return out
}

func moduleOf(x engi.CodeModule) v1.CodeModule {
	return v1.CodeModule{
		Path: x.Path, Description: x.Description, Exports: x.Exports, Usage: x.Usage, Scope: string(x.Scope), Source: x.Source, SessionID: string(x.Session), SavedAt: x.Saved,
	}
}
