package tool

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Apps is the part of [engi.Apps] that the tools of apps use.
type Apps interface {
	Create(ctx context.Context, spec engi.AppSpec) (engi.App, error)
	Get(ctx context.Context, viewer engi.Viewer, app string) (engi.App, error)
	Apply(ctx context.Context, spec engi.ApplySpec) (seq int64, err error)
	Watch(ctx context.Context, viewer engi.Viewer, app string, seq int64) iter.Seq2[engi.AppUpdate, error]
	Files(ctx context.Context, viewer engi.Viewer, app string, revision int64) ([]engi.AppFile, error)
	File(ctx context.Context, viewer engi.Viewer, app, path string, revision int64) (io.ReadCloser, error)
}

type createAppArgs struct {
	Name     string `json:"name,omitempty" jsonschema:"letters, digits and dashes; default: a generated name"`
	Template string `json:"template,omitempty" jsonschema:"vite-react, node-api, fastapi or a template of the operator; default: vite-react"`

	Workspace string `json:"workspace,omitempty" jsonschema:"name of a workspace whose services the app reaches by name; default with directory: the one that you work in"`
	Directory string `json:"directory,omitempty" jsonschema:"directory of the workspace with the app's files, whose server then runs in the workspace's sandbox, with start and port and without template"`
	Start     string `json:"start,omitempty" jsonschema:"shell command that starts the server in the directory, like npm start"`
	Port      int    `json:"port,omitempty" jsonschema:"port of the server in the directory"`
}

type applyToAppArgs struct {
	App  string `json:"app" jsonschema:"ID or name"`
	Text string `json:"text" jsonschema:"files, edits and packages, as the description says"`
}

type readAppArgs struct {
	App  string `json:"app" jsonschema:"ID or name"`
	Path string `json:"path,omitempty" jsonschema:"file to read, relative to the app; default: lists the files"`
}

const (
	maxAppFile  = 128 << 10 // maximum bytes read of one file
	maxAppFiles = 400       // maximum number of listed files
	maxWarnings = 40        // maximum number of warnings of one apply
)

func appTools(s Services) ([]Tool, error) {
	if s.Apps == nil {
		return nil, nil
	}
	create, err := New("create_app", "Creates a web application with a development server and a preview, which apply_to_app changes.",
		func(ctx context.Context, c *Call, a createAppArgs) (Result, error) {
			if a.Directory != "" {
				a.Workspace = cmp.Or(a.Workspace, c.Workspace)
			}
			x, err := s.Apps.Create(ctx, engi.AppSpec{Owner: c.Owner, Name: a.Name, Template: a.Template, Workspace: a.Workspace, Directory: a.Directory, Start: a.Start, Port: a.Port})
			if err != nil {
				return Result{}, err
			}
			return s.describeApp(ctx, c, x)
		})
	if err != nil {
		return nil, err
	}
	apply, err := New("apply_to_app", `Changes a web application: all of it is applied, checked and kept as a revision, or nothing changes and the errors are returned.
The text has whole files as <file path="src/App.tsx">...</file>, changes of files as <edit path="src/App.tsx"> with blocks of <<<<<<< SEARCH, =======, >>>>>>> REPLACE, `+
		`removals as <file path="x" action="delete"/>, and packages as <package>name</package>.`,
		func(ctx context.Context, c *Call, a applyToAppArgs) (Result, error) { return s.applyToApp(ctx, c, a) })
	if err != nil {
		return nil, err
	}
	read, err := New("read_app", "Lists the files of a web application, or reads one.", func(ctx context.Context, c *Call, a readAppArgs) (Result, error) {
		x, err := s.Apps.Get(ctx, c.Owner.Viewer(), a.App)
		switch {
		case err != nil:
			return Result{}, err
		case a.Path == "":
			return s.describeApp(ctx, c, x)
		}
		f, err := s.Apps.File(ctx, c.Owner.Viewer(), string(x.ID), a.Path, 0)
		if err != nil {
			return Result{}, err
		}
		defer f.Close()
		return readText(f, a.Path)
	})
	read.Repeatable = true
	return []Tool{create, apply, read}, err
}

// readText returns the beginning of a file.
func readText(f io.Reader, path string) (Result, error) {
	b, err := io.ReadAll(io.LimitReader(f, maxAppFile+1))
	if err != nil {
		return Result{}, engi.Errorf(engi.Unavailable, "read %s: %v", path, err)
	}
	text := strings.ToValidUTF8(string(b[:min(len(b), maxAppFile)]), "\ufffd")
	if len(b) > maxAppFile {
		text += fmt.Sprintf("\n(the first %d bytes)", maxAppFile)
	}
	return Result{Text: text}, nil
}

// describeApp returns the addresses and the files of an app.
func (s Services) describeApp(ctx context.Context, c *Call, x engi.App) (Result, error) {
	files, err := s.Apps.Files(ctx, c.Owner.Viewer(), string(x.ID), 0)
	if err != nil && !engi.Is(err, engi.Conflict) { // Conflict: the app has no files yet
		return Result{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "app %s (%s) from %s is %s, revision %d", x.Name, x.ID, x.Template, x.State, x.Revision)
	if x.Sandbox != "" && s.Preview != nil {
		fmt.Fprintf(&b, ", at %s", s.Preview(x.Sandbox, x.Port))
	}
	if x.Error != nil {
		fmt.Fprintf(&b, "\nerror: %s", x.Error.Text)
	}
	for i, f := range files {
		if i == maxAppFiles {
			fmt.Fprintf(&b, "\nand %d more files", len(files)-i)
			break
		}
		fmt.Fprintf(&b, "\n%s (%d bytes)", oneLine(f.Path), f.Size)
	}
	return Result{Text: b.String(), Failed: x.State == engi.AppFailed}, nil
}

// applyToApp waits for the end of an apply and returns its result.
func (s Services) applyToApp(ctx context.Context, c *Call, a applyToAppArgs) (Result, error) {
	x, err := s.Apps.Get(ctx, c.Owner.Viewer(), a.App)
	if err != nil {
		return Result{}, err
	}
	seq, err := s.Apps.Apply(ctx, engi.ApplySpec{Viewer: c.Owner.Viewer(), App: string(x.ID), Text: a.Text, Actor: cmp.Or(string(c.Run), engi.ActorOf(ctx))})
	if err != nil {
		return Result{}, err
	}
	var told []string
	more := 0
	tell := func(u engi.AppUpdate, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if u.Path != "" && u.Line > 0 {
			text += fmt.Sprintf(" (%s:%d)", oneLine(u.Path), u.Line)
		} else if u.Path != "" {
			text += " (" + oneLine(u.Path) + ")"
		}
		if len(told) == maxWarnings {
			more++
			return
		}
		told = append(told, text)
	}
	for u, err := range s.Apps.Watch(ctx, c.Owner.Viewer(), string(x.ID), seq) {
		if err != nil {
			return Result{}, err
		}
		if u.Apply != seq {
			continue
		}
		switch u.Kind {
		case engi.AppLog:
			c.Out(engi.Stdout, []byte(u.Text+"\n"))
		case engi.AppWarning:
			tell(u, "warning: %s", u.Text)
		case engi.AppCommand:
			tell(u, "%s ended with exit code %d", oneLine(u.Name), u.Code)
		case engi.AppApplied, engi.AppApplyFailed:
			if more > 0 {
				told = append(told, fmt.Sprintf("and %d more warnings", more))
			}
			if u.Kind == engi.AppApplied && u.Error == nil {
				return Result{Text: strings.Join(append([]string{fmt.Sprintf("revision %d of app %s is served", u.Revision, x.Name)}, told...), "\n")}, nil
			}
			why := u.Error
			if why == nil {
				why = engi.Errorf(engi.Internal, "the apply failed")
			}
			r := Failure(why)
			r.Text = strings.Join(append([]string{"nothing has changed: " + r.Text}, told...), "\n")
			return r, nil
		}
	}
	return Result{}, engi.Errorf(engi.NotFound, "app %s was removed", x.Name)
}
