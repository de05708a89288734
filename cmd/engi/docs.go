package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type docsCommand struct {
	Add      docsAdd       `cmd:"" help:"Add documents."`
	List     docsList      `cmd:"" aliases:"ls" help:"List documents."`
	Search   docsSearch    `cmd:"" help:"Search documents, and modules that sessions have saved."`
	Packages listCommand   `cmd:"" help:"List the packages that documents describe."`
	Refresh  docsRefresh   `cmd:"" help:"Fetch changed documents again."`
	Remove   removeCommand `cmd:"" aliases:"rm" help:"Remove documents."`
	Modules  docsModules   `cmd:"" help:"List modules that sessions have saved."`
}

var docsCommands = docsCommand{
	Packages: lists(example("engi docs packages"), table[v1.DocumentPackage]{"PACKAGE\tDOCUMENTS\tPIECES", func(x v1.DocumentPackage) []any { return []any{x.Name, x.Documents, x.Chunks} }, nil}, (*client.Client).DocumentPackages),
	Remove:   removes(example("engi docs remove $id", "engi docs remove $(engi docs list -q)"), "removed", (*client.Client).RemoveDocument),
}

const (
	maxDocuments = 5000 // maximum number of documents in one directory
)

var documentNames = []string{".md", ".mdx", ".markdown", ".txt"}

type docsAdd struct {
	Sources []string `arg:"" name:"source" help:"File, directory, URL, or - for standard input." placeholder:"SOURCE"`
	Package string   `short:"p" help:"Package that the documents describe." placeholder:"NAME"`
	Title   string   `short:"t" help:"Title of a single document (default: the file name, or the first heading)." placeholder:"TITLE"`
}

func (docsAdd) Help() string {
	return `Documents are Markdown or plain text. From a directory, files that end in .md, .mdx, .markdown or
.txt are added with their paths as titles; names that begin with a dot are skipped. A document with
the same package and title, or URL, is replaced. The server fetches URLs if its operator allows it.
Documents that are added with the admin key are found by every owner.

Examples:
  engi docs add https://example.com/sdk.md --package @acme/sdk
  engi docs add docs/ README.md --package acme
  engi docs list --json | engi docs add - --title "What there is"`
}

// A report is a document to add.
type report struct {
	name string // name for users
	read func() (v1.DocumentRequest, error)
}

func (a *docsAdd) Run(ctx context.Context, g *globals) error {
	all, err := a.documentsOf(g)
	if err != nil {
		return err
	}
	if len(all) > 1 && a.Title != "" {
		return engi.Errorf(engi.Invalid, "%d documents cannot have one title", len(all)).WithRemedy("leave --title out")
	}
	return g.atServer(ctx, func(d *connection) error {
		bar, done := g.documentBar(len(all))
		added := []v1.Document{}
		var errs []error
		for _, s := range all {
			x, err := s.add(ctx, d, a)
			bar()
			if err != nil {
				if ctx.Err() != nil {
					done()
					return err
				}
				errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
				continue
			}
			added = append(added, x)
		}
		done()
		if g.JSON {
			if err := g.printJSON(added); err != nil {
				return err
			}
			return g.several(errs)
		}
		for _, x := range added {
			fmt.Fprintln(g.out, x.ID, printable(x.Title))
		}
		return g.several(errs)
	})
}

func (s report) add(ctx context.Context, d *connection, a *docsAdd) (v1.Document, error) {
	q, err := s.read()
	if err != nil {
		return v1.Document{}, err
	}
	q.Package = a.Package
	if a.Title != "" {
		q.Title = a.Title
	}
	return d.AddDocument(ctx, q)
}

// documentsOf returns the documents in the arguments. It reads only directories.
func (a *docsAdd) documentsOf(g *globals) (all []report, _ error) {
	for _, arg := range a.Sources {
		if strings.HasPrefix(arg, "http://") || strings.HasPrefix(arg, "https://") {
			all = append(all, report{arg, func() (v1.DocumentRequest, error) { return v1.DocumentRequest{URL: arg}, nil }})
			continue
		}
		if arg == "-" {
			all = append(all, report{"standard input", func() (v1.DocumentRequest, error) {
				text, err := g.readStdin(engi.MaxDocument)
				return v1.DocumentRequest{Text: string(text)}, err
			}})
			continue
		}
		info, err := os.Stat(arg)
		if err != nil {
			return nil, engi.Errorf(engi.Invalid, "%v", err).WithRemedy("name files, directories or URLs, or - for standard input")
		}
		if !info.IsDir() {
			all = append(all, paperOf(arg, filepath.Base(arg)))
			continue
		}
		n := len(all)
		err = filepath.WalkDir(arg, func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return engi.Errorf(engi.Invalid, "%v", err)
			case path != arg && strings.HasPrefix(e.Name(), "."):
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			case !e.Type().IsRegular() || !slices.Contains(documentNames, strings.ToLower(filepath.Ext(path))):
				return nil
			case len(all)-n == maxDocuments:
				return engi.Errorf(engi.Invalid, "%s has more than %d documents", arg, maxDocuments).WithRemedy("add directories below it one by one")
			}
			title, err := filepath.Rel(arg, path)
			all = append(all, paperOf(path, filepath.ToSlash(title)))
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(all) == n {
			return nil, engi.Errorf(engi.Invalid, "%s has no documents", arg).WithRemedy("documents end in one of %s", strings.Join(documentNames, ", "))
		}
	}
	return all, nil
}

func paperOf(path, title string) report {
	return report{path, func() (v1.DocumentRequest, error) {
		f, err := os.Open(path)
		if err != nil {
			return v1.DocumentRequest{}, engi.Errorf(engi.Invalid, "%v", err)
		}
		defer f.Close()
		text, err := io.ReadAll(io.LimitReader(f, engi.MaxDocument+1))
		if err != nil {
			return v1.DocumentRequest{}, engi.Errorf(engi.Invalid, "%v", err)
		}
		if len(text) > engi.MaxDocument {
			return v1.DocumentRequest{}, engi.Errorf(engi.Invalid, "it has more than %d MiB", engi.MaxDocument>>20).WithRemedy("split it into several documents")
		}
		return v1.DocumentRequest{Title: title, Text: string(text)}, nil
	}}
}

// documentBar shows the progress of adding n documents.
func (g *globals) documentBar(n int) (one, done func()) {
	if n < 3 || g.JSON || width(g.err) < 60 {
		return func() {}, func() {}
	}
	bars := mpb.New(mpb.WithOutput(g.err), mpb.WithWidth(40))
	bar := bars.New(int64(n), mpb.BarStyle().Rbound("]"), mpb.PrependDecorators(decor.Name("documents ")), mpb.AppendDecorators(decor.CountersNoUnit("%d / %d")))
	return bar.Increment, func() {
		bar.Abort(false)
		bars.Wait()
	}
}

type docsList struct {
	Quiet bool `short:"q" help:"Print IDs only."`
}

func (docsList) Help() string {
	return `Lists your documents, and the documents of the node, which every owner finds.

Examples:
  engi docs list
  engi docs list --json`
}

func (l *docsList) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		all, err := d.Documents(ctx)
		if err != nil {
			return err
		}
		if l.Quiet && !g.JSON {
			for _, x := range all {
				fmt.Fprintln(g.out, x.ID)
			}
			return nil
		}
		return g.showDocuments(all)
	})
}

// showDocuments prints documents and their errors.
func (g *globals) showDocuments(all []v1.Document) error {
	documents := table[v1.Document]{"ID\tOWNER\tPACKAGE\tTITLE\tPIECES\tSIZE\tSTATE\tCHECKED", func(x v1.Document) []any {
		return []any{
			x.ID, cmp.Or(x.Owner, "node"), x.Package, fmt.Sprintf("%.60s", x.Title), x.Chunks, fmt.Sprintf("%d KiB", (x.Bytes+1023)>>10), x.State, ago(x.CheckedAt),
		}
	}, nil}
	if err := documents.print(g, all); err != nil || g.JSON {
		return err
	}
	for _, x := range all {
		if x.Error != nil {
			g.note("%s: %s", x.ID, printable(x.Error.Detail))
		}
	}
	return nil
}

type docsSearch struct {
	Words   []string `arg:"" name:"question" help:"Question or task." placeholder:"QUESTION"`
	Package string   `short:"p" help:"Only documents about this package." placeholder:"NAME"`
	Session string   `help:"Also find modules of this session." placeholder:"SESSION"`
	Mode    string   `help:"Search mode: hybrid (by meaning and words), vector or keyword." enum:"hybrid,vector,keyword" default:"hybrid" placeholder:"MODE"`
	Limit   int      `short:"n" help:"Maximum number of results." default:"5" placeholder:"N"`
	Full    bool     `help:"Print whole passages."`
}

func (docsSearch) Help() string {
	return `Prints the source and the beginning of each passage. The search mode, the embedding model and
remarks are printed on standard error.

Examples:
  engi docs search how do I create an issue --package @linear/sdk
  engi docs search retry --mode keyword -n 10
  engi docs search "open tickets" --session chat --json`
}

func (s *docsSearch) Run(ctx context.Context, g *globals) error {
	q := v1.SearchRequest{Query: strings.Join(s.Words, " "), Package: s.Package, Session: s.Session, Mode: s.Mode, Limit: s.Limit}
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.SearchDocuments(ctx, q)
		switch {
		case err != nil:
			return err
		case g.JSON:
			return g.printJSON(x)
		}
		for i, h := range x.Hits {
			if i > 0 {
				fmt.Fprintln(g.out)
			}
			fmt.Fprintf(g.out, "%d. %s\n", i+1, hitHead(h))
			text, limit := h.Text, snippetLines
			if h.Module != nil {
				text = h.Module.Usage
				if s.Full && h.Module.Source != "" {
					text = h.Module.Source
				}
			}
			if s.Full {
				limit = -1
			}
			g.snippet(text, limit)
		}
		searched := "searched by words"
		if x.Embedder != "" {
			searched += " and likeness (" + x.Embedder + ")"
			if s.Mode == v1.SearchVector {
				searched = "searched by likeness (" + x.Embedder + ")"
			}
		}
		if len(x.Hits) == 0 {
			searched = "nothing found; " + searched
		}
		if x.Note != "" {
			searched += "; " + x.Note
		}
		g.note("%s", printable(searched))
		return nil
	})
}

// hitHead returns the source of a hit, in one or two lines.
func hitHead(h v1.Hit) string {
	if m := h.Module; m != nil {
		return printable(fmt.Sprintf("module %s of scope %s: %s", m.Path, m.Scope, m.Description))
	}
	path := h.Headings
	if len(path) == 0 || path[0] != h.Title {
		path = append([]string{h.Title}, path...)
	}
	head := printable(strings.Join(path, " > "))
	if h.Package != "" {
		head = printable(h.Package) + "  " + head
	}
	if h.URL != "" {
		head += "\n   " + printable(h.URL)
	}
	return head
}

const (
	snippetLines = 4
	snippetWidth = 110
)

// snippet prints the beginning of a text; all of it if lines is negative.
func (g *globals) snippet(text string, lines int) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(printable(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")), " ")
		if lines >= 0 {
			if line == "" {
				continue
			}
			if lines == 0 {
				fmt.Fprintln(g.out, "   …")
				return
			}
			lines--
			if r := []rune(line); len(r) > snippetWidth {
				line = string(r[:snippetWidth]) + "…"
			}
		}
		fmt.Fprintln(g.out, strings.TrimRight("   "+line, " "))
	}
}

type docsRefresh struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Documents (default: all of yours, or, with the admin key, of the node)." placeholder:"ID"`
}

func (docsRefresh) Help() string {
	return `The server also does this regularly. A document whose source cannot be read keeps its older text.

Examples:
  engi docs refresh
  engi docs refresh $id`
}

func (r *docsRefresh) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) (err error) {
		all := []v1.Document{}
		var errs []error
		if len(r.IDs) == 0 {
			if all, err = d.RefreshDocuments(ctx); err != nil {
				return err
			}
		}
		for _, id := range r.IDs {
			x, err := d.RefreshDocument(ctx, id)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, x)
		}
		if err := g.showDocuments(all); err != nil {
			return err
		}
		return g.several(errs)
	})
}

type docsModules struct {
	Session string `arg:"" optional:"" help:"Modules that this session finds (default: modules that all of your sessions find)." placeholder:"SESSION"`
}

func (docsModules) Help() string {
	return `Modules are files below /workspace of a session that agents have saved for later use.

Examples:
  engi docs modules
  engi docs modules chat --json`
}

func (m *docsModules) Run(ctx context.Context, g *globals) error {
	modules := table[v1.CodeModule]{"PATH\tSCOPE\tSESSION\tSAVED\tWHAT IT IS FOR", func(x v1.CodeModule) []any {
		return []any{x.Path, x.Scope, x.SessionID, ago(x.SavedAt), x.Description}
	}, nil}
	return modules.list(ctx, g, false, func(d *connection) ([]v1.CodeModule, error) {
		if m.Session == "" {
			return d.Modules(ctx)
		}
		return d.SessionModules(ctx, m.Session)
	})
}
