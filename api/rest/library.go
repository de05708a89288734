package rest

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const documents = "/v1/docs"

type aDocument struct {
	ID string `path:"id" doc:"of the document"`
}

type getSearch struct {
	Query   string `query:"query" required:"true" minLength:"1" maxLength:"4096" doc:"what you want to do or know"`
	Package string `query:"package" maxLength:"214" doc:"only what is about it"`
	Session string `query:"session" maxLength:"128" doc:"ID or name: its modules are found, too"`
	Mode    string `query:"mode" enum:"hybrid,vector,keyword" doc:"by meaning and words, by meaning, by words; absent means hybrid"`
	Limit   int    `query:"limit" minimum:"1" maximum:"50" default:"5"`
}

func (s *server) serveLibrary() {
	handle(s, s.opAddDocument(), s.addDocument)
	handle(s, s.opListDocuments(), s.listDocuments)
	handle(s, s.opSearchDocuments(), s.searchDocuments)
	handle(s, s.opDocumentPackages(), s.documentPackages)
	handle(s, s.opRefreshDocuments(), s.refreshDocuments)
	handle(s, s.opRefreshDocument(), s.refreshDocument)
	handle(s, s.opGetDocument(), s.getDocument)
	handle(s, s.opRemoveDocument(), s.removeDocument)
	handle(s, s.opSaveModules(), s.saveModules)
	handle(s, s.opSessionModules(), s.sessionModules)
	handle(s, s.opModules(), s.modules)
}

var errNoLibrary = engi.Errorf(engi.Unsupported, "this node has no library").WithRemedy("switch it on in its configuration: off = false in section [docs]")

func (s *server) addDocument(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.library == nil {
		return errNoLibrary
	}
	q, err := decode[v1.DocumentRequest](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	if q.URL == "" && q.Text == "" {
		c.addf("text", "it is missing: send text, or url")
	}
	for field, text := range map[string]string{"package": q.Package, "title": q.Title, "url": q.URL, "text": q.Text} {
		c.text(field, text)
	}
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	// An admin without an owner adds what everybody finds.
	x, err := s.library.Add(r.Context(), engi.DocumentSpec{Owner: callOf(r.Context()).key.Owner, Package: q.Package, Title: q.Title, URL: q.URL, Text: q.Text})
	if err != nil {
		return err
	}
	w.Header().Set("Location", documents+"/"+string(x.ID))
	return s.reply(w, http.StatusCreated, documentOf(x))
}

func (s *server) listDocuments(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.library == nil {
		return errNoLibrary
	}
	xs, err := s.library.Documents(r.Context(), callOf(r.Context()).viewer())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, documentOf))
}

// document returns the ID of a path and who asks.
func (s *server) document(r *http.Request, id string) (engi.Owner, engi.DocumentID, error) {
	if s.library == nil {
		return "", "", errNoLibrary
	}
	x, err := engi.ParseDocumentID(id)
	return callOf(r.Context()).viewer(), x, err
}

func (s *server) getDocument(w http.ResponseWriter, r *http.Request, in *aDocument) error {
	viewer, id, err := s.document(r, in.ID)
	if err != nil {
		return err
	}
	xs, err := s.library.Documents(r.Context(), viewer)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(xs, func(x engi.Document) bool { return x.ID == id })
	if i < 0 {
		return engi.Errorf(engi.NotFound, "there is no document %s", id)
	}
	return s.reply(w, http.StatusOK, documentOf(xs[i]))
}

func (s *server) removeDocument(w http.ResponseWriter, r *http.Request, in *aDocument) error {
	viewer, id, err := s.document(r, in.ID)
	if err != nil {
		return err
	}
	if err := s.library.Remove(r.Context(), viewer, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) refreshDocuments(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.library == nil {
		return errNoLibrary
	}
	xs, err := s.library.Refresh(r.Context(), callOf(r.Context()).viewer(), "")
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, documentOf))
}

func (s *server) refreshDocument(w http.ResponseWriter, r *http.Request, in *aDocument) error {
	viewer, id, err := s.document(r, in.ID)
	if err != nil {
		return err
	}
	xs, err := s.library.Refresh(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	if len(xs) != 1 {
		return engi.Errorf(engi.Internal, "refresh %s: %d documents", id, len(xs))
	}
	return s.reply(w, http.StatusOK, documentOf(xs[0]))
}

func (s *server) searchDocuments(w http.ResponseWriter, r *http.Request, in *getSearch) error {
	if s.library == nil {
		return errNoLibrary
	}
	x, err := s.library.Search(r.Context(), engi.SearchSpec{
		Owner: callOf(r.Context()).viewer(), Session: in.Session, Text: in.Query, Package: in.Package, Mode: engi.SearchMode(in.Mode), Limit: in.Limit,
	})
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, v1.Finding{Hits: listOf(x.Hits, hitOf).Items, Embedder: x.Embedder, Note: x.Note})
}

func (s *server) documentPackages(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.library == nil {
		return errNoLibrary
	}
	xs, err := s.library.Packages(r.Context(), callOf(r.Context()).viewer())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, func(x engi.DocumentPackage) v1.DocumentPackage { return v1.DocumentPackage(x) }))
}

func (s *server) saveModules(w http.ResponseWriter, r *http.Request, in *aSession) error {
	if s.library == nil {
		return errNoLibrary
	}
	q, err := decode[v1.CodeModulesRequest](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	if len(q.Modules) == 0 {
		c.addf("modules", "it is missing")
	}
	var all []engi.CodeModule
	for i, m := range q.Modules {
		field := fmt.Sprintf("modules[%d].", i)
		c.relative(field+"path", m.Path)
		c.oneOf(field+"scope", m.Scope, []string{string(engi.ModuleSession), string(engi.ModuleUser)})
		c.text(field+"description", m.Description)
		c.text(field+"usage", m.Usage)
		all = append(all, engi.CodeModule{Path: m.Path, Description: m.Description, Exports: m.Exports, Usage: m.Usage, Scope: engi.ModuleScope(m.Scope)})
	}
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	viewer := callOf(r.Context()).viewer()
	if err := s.library.SaveModules(r.Context(), viewer, in.ID, all); err != nil {
		return err
	}
	return s.replyModules(w, r, in.ID)
}

func (s *server) sessionModules(w http.ResponseWriter, r *http.Request, in *aSession) error {
	if s.library == nil {
		return errNoLibrary
	}
	return s.replyModules(w, r, in.ID)
}

func (s *server) modules(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.library == nil {
		return errNoLibrary
	}
	return s.replyModules(w, r, "")
}

func (s *server) replyModules(w http.ResponseWriter, r *http.Request, session string) error {
	xs, err := s.library.Modules(r.Context(), callOf(r.Context()).viewer(), session)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, moduleOf))
}

func documentOf(x engi.Document) v1.Document {
	out := v1.Document{
		ID: string(x.ID), Owner: string(x.Owner), Package: x.Package, Title: x.Title, URL: x.URL, Fetched: x.Fetched, Bytes: v1.Bytes(x.Bytes),
		Chunks: x.Chunks, Digest: x.Digest, State: string(x.State), CheckedAt: x.Checked, ChangedAt: x.Changed,
	}
	if x.Error != nil {
		out.Error = new(httpio.Describe(x.Error, ""))
	}
	return out
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

func (s *server) opAddDocument() huma.Operation {
	op := s.operation(http.MethodPost, documents, "add-document", "docs", "Add a document",
		"Answers once it can be found. One of the same package and url (or title, without url) is replaced. What an admin without an owner adds is the node's, and everybody finds it. "+
			"Addresses are fetched where the node's operator allows it; text can always be sent.", http.StatusCreated)
	accepts[v1.DocumentRequest](s, &op, nil)
	answers[v1.Document](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusCreated, "Location", "address of the document")
	return op
}

func (s *server) opListDocuments() huma.Operation {
	op := s.operation(http.MethodGet, documents, "list-documents", "docs", "List documents", "By package and title: the caller's and the node's.", http.StatusOK)
	answers[v1.List[v1.Document]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opSearchDocuments() huma.Operation {
	op := s.operation(http.MethodGet, documents+"/search", "search-documents", "docs", "Search documents and modules",
		"Pieces of documents, by meaning and by words, and modules that were saved. The answer names the embedder that compared meanings.", http.StatusOK)
	answers[v1.Finding](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opDocumentPackages() huma.Operation {
	op := s.operation(http.MethodGet, documents+"/packages", "list-document-packages", "docs", "List packages", "What documents are about, by name.", http.StatusOK)
	answers[v1.List[v1.DocumentPackage]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRefreshDocuments() huma.Operation {
	op := s.operation(http.MethodPost, documents+"/refresh", "refresh-documents", "docs", "Refresh documents",
		"Looks whether the caller's documents have changed where they were fetched from, and reads those that have.", http.StatusOK)
	answers[v1.List[v1.Document]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRefreshDocument() huma.Operation {
	op := s.operation(http.MethodPost, documents+"/{id}/refresh", "refresh-document", "docs", "Refresh a document", "One that could not be read keeps its older text, and says why.", http.StatusOK)
	answers[v1.Document](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetDocument() huma.Operation {
	op := s.operation(http.MethodGet, documents+"/{id}", "get-document", "docs", "Get a document", "What is known of it; its text is found by searching.", http.StatusOK)
	answers[v1.Document](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRemoveDocument() huma.Operation {
	return s.operation(http.MethodDelete, documents+"/{id}", "remove-document", "docs", "Remove a document", "It is found no more. The node's documents are for admins to remove.", http.StatusNoContent)
}

func (s *server) opSaveModules() huma.Operation {
	op := s.operation(http.MethodPost, sessions+"/{id}/modules", "save-modules", "docs", "Save modules of a session",
		"Says what files below /workspace are good for, so that searches find them. The volume keeps the source; with scope user a copy is kept for the owner's other sessions. "+
			"Answers with all modules that the session finds.", http.StatusOK)
	accepts[v1.CodeModulesRequest](s, &op, nil)
	answers[v1.List[v1.CodeModule]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opSessionModules() huma.Operation {
	op := s.operation(http.MethodGet, sessions+"/{id}/modules", "list-session-modules", "docs", "List modules that a session finds", "Its own, and those of its owner with scope user.", http.StatusOK)
	answers[v1.List[v1.CodeModule]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opModules() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/modules", "list-modules", "docs", "List modules of scope user", "All sessions of their owner find them.", http.StatusOK)
	answers[v1.List[v1.CodeModule]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}
