package rest

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A Resource is one kind of object with its routes. Functions named after
// resources ([Volumes], [Sandboxes]) build them from the services that they
// need, and [New] serves them.
type Resource struct {
	tag, about string
	missing    error // reason why the node does not have this resource; nil if it does
	routes     []Route
}

// A Route is one operation of the API: its name, its access rule,
// its input and output, and its function. Access control,
// the mux, the OpenAPI description, the parsing of parameters and bodies,
// idempotency, and the tests that call every route all derive from this value.
type Route struct {
	Pattern string // method and path, in the syntax of [http.ServeMux]
	ID      string // ID of the operation; an empty one leaves the route out of the description
	Tag     string // tag of the route; empty means the resource's
	Summary string // one line
	Text    string // description after the summary; may be empty
	Access  Access
	Objects Objects

	// Creates describes the effect of a repeated Idempotency-Key; empty if the route
	// takes none. See [once] and call.key.
	Creates string

	Status   int      // status of success; 0 means 200, or 204 for an answer without a body
	Location string   // description of the Location header; empty if the answer has none
	Example  any      // example of the answer
	Answers  []answer // possible answers. A raw route lists all of them; other routes list those besides the first
	Optional bool     // the body is optional
	Bodies   []example
	Uploads  []string // media types other than JSON that the body may have; the function reads such a body
	Quiet    bool     // successes are logged at debug level only
	Password bool     // basic authentication is accepted, with the key as the password

	// Error returns the member error that clients of the route's dialect expect in a
	// problem document; nil for none.
	Error func(v1.Problem) any

	missing error // reason why the node cannot serve the route; nil if it can
	params  reflect.Type
	body    reflect.Type // type of the body; nil if the route has none, or its body is not JSON
	reader  *params
	forms   []httpio.Format // formats that Accept selects from; empty unless one of them is a stream
	serve   func(*call) error
}

// Access is the access rule of a route. The zero value admits every key.
type Access struct {
	Open  bool       // the route needs no key
	Admin bool       // the route needs an admin's key
	Scope engi.Scope // scope that the key needs; empty admits keys without any scope
	Write bool       // the route may change something
	Also  engi.Scope // second scope that the key needs; empty for none
}

var (
	open      = Access{Open: true}
	anyKey    = Access{}
	adminOnly = Access{Admin: true, Write: true}
)

func reads(s engi.Scope) Access  { return Access{Scope: s} }
func writes(s engi.Scope) Access { return Access{Scope: s, Write: true} }

// Objects says whose objects a route uses, which determines call.owner and call.viewer.
type Objects int

const (
	Viewed Objects = iota // the caller's objects; all objects for an admin
	Owned                 // the caller's objects, also for an admin, because a new object needs an owner
	Shared                // objects of the node, which are the same for all callers
)

// Allows reports Denied unless k may use the route.
func (r *Route) Allows(k engi.Key) error {
	if r.Access.Admin && !k.Admin {
		return engi.Errorf(engi.Denied, "key %s is not an admin's", k.ID).
			WithRemedy("use an admin key; the first one is in admin.key in the data directory")
	}
	if err := k.May(r.Access.Scope, r.Access.Write); err != nil || r.Access.Also == "" {
		return err
	}
	return k.May(r.Access.Also, r.Access.Write)
}

// method and path are the two parts of the pattern.
func (r *Route) method() string { m, _, _ := strings.Cut(r.Pattern, " "); return m }
func (r *Route) path() string   { _, p, _ := strings.Cut(r.Pattern, " "); return p }

// An answer is one form of a response.
type answer struct {
	status  int
	media   string       // media type of the body; empty if there is no body
	of      reflect.Type // type of the body; nil for bytes
	example any
	headers map[string]string // names of headers with their descriptions
}

// jsonOf returns an answer with a T as JSON.
func jsonOf[T any](status int, example any) answer {
	return answer{status: status, media: string(httpio.JSON), of: reflect.TypeFor[T](), example: example}
}

// bytesOf returns an answer with bytes.
func bytesOf(status int, media string, headers map[string]string) answer {
	return answer{status: status, media: media, headers: headers}
}

// streamOf returns answers with events, in the order of preference.
func streamOf[T any](example any, forms ...httpio.Format) (all []answer) {
	for _, f := range forms {
		a := answer{status: http.StatusOK, media: string(f), of: reflect.TypeFor[T]()}
		if f == httpio.NDJSON {
			a.example = example
		}
		all = append(all, a)
	}
	return all
}

// An example is a valid request, which tests send.
type example struct{ name, summary, Body string }

// none is the type of absent parameters, bodies and answers.
type none struct{}

// bind sets the function of a route.
func bind[P, B any](r Route, h func(*call, *P, B) error) Route {
	r.params = reflect.TypeFor[P]()
	if t := reflect.TypeFor[B](); t != reflect.TypeFor[none]() {
		r.body = t
	}
	for _, a := range r.Answers {
		if f := httpio.Format(a.media); !slices.Contains(r.forms, f) && slices.Contains([]httpio.Format{httpio.JSON, httpio.NDJSON, httpio.SSE}, f) {
			r.forms = append(r.forms, f)
		}
	}
	if !slices.Contains(r.forms, httpio.NDJSON) {
		r.forms = nil // there is nothing to select
	}
	r.serve = func(c *call) error {
		var p P
		if err := c.route.reader.read(c, reflect.ValueOf(&p).Elem()); err != nil {
			return err
		}
		if err := c.readKey(); err != nil {
			return err
		}
		if len(c.route.forms) > 0 {
			form, err := httpio.Negotiate(c.r, c.route.forms...)
			if err != nil {
				return err
			}
			c.form = form
		}
		var b B
		if c.route.body != nil && !(c.route.Optional && c.emptyBody()) && !c.uploads() {
			if err := c.decode(&b); err != nil {
				return err
			}
		}
		return h(c, &p, b)
	}
	return r
}

// send returns a route that takes a B as JSON and answers with an R, or without
// a body if R is none.
func send[P, B, R any](r Route, h func(*call, *P, B) (R, error)) Route {
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	first := jsonOf[R](r.Status, r.Example)
	if r.Location != "" {
		first.headers = map[string]string{"Location": r.Location}
	}
	r.Answers = append([]answer{first}, r.Answers...)
	return bind(r, func(c *call, p *P, b B) error {
		x, err := h(c, p, b)
		if err != nil {
			return err
		}
		return c.reply(c.route.Status, x)
	})
}

// create returns a route that makes one object of a Q in JSON, with a fresh ID, and
// answers with the object. A repetition with the same Idempotency-Key is answered
// with the result of find.
func create[P, Q, X, T any, ID ~string](r Route, fresh func() ID, work func(*call, *P, ID, Q) (X, error), find func(*call, ID) (X, error), as func(X) T) Route {
	r.Status, r.Location, r.Objects = http.StatusCreated, cmp.Or(r.Location, "path of what was made"), Owned
	r.Creates = cmp.Or(r.Creates, "a repeated key returns what the first request made instead of making another")
	return send(r, func(c *call, in *P, q Q) (T, error) {
		id := string(fresh())
		x, err := once(c, q, idempotency.Creation[X]{
			IDs: []string{id},
			Work: func(ids []string) (X, error) {
				if len(ids) > 0 {
					id = ids[0]
				}
				return work(c, in, ID(id), q)
			},
			Find: func(ids []string, _ bool) (X, error) {
				id = ids[0]
				return find(c, ID(id))
			},
		})
		if err != nil {
			var none T
			return none, err
		}
		c.location(c.route.path(), id)
		return as(x), nil
	})
}

// fetch returns a route that takes no body and answers with an R.
func fetch[P, R any](r Route, h func(*call, *P) (R, error)) Route {
	return send(r, func(c *call, p *P, _ none) (R, error) { return h(c, p) })
}

// list returns a route that answers with all objects of a kind.
func list[P, X, T any](r Route, h func(*call, *P) ([]X, error), as func(X) T) Route {
	return fetch(r, func(c *call, p *P) (v1.List[T], error) {
		xs, err := h(c, p)
		return listOf(xs, as), err
	})
}

// byID holds the parameters of a route for one object.
type byID[ID ~string] struct {
	ID ID `path:"id" doc:"ID of the object"`
}

// listing, getting and ending return the functions of routes that list, get and end
// objects of the caller, as in list(…, listing(service, engi.Volumes.List), volumeOf). The
// service may be nil.
func listing[S, X any](service S, of func(S, context.Context, engi.Viewer) ([]X, error)) func(*call, *none) ([]X, error) {
	return func(c *call, _ *none) ([]X, error) { return of(service, c, c.viewer()) }
}

// A page holds the parameters of lists. Without them the list is complete.
type page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" doc:"Maximum number of items in a page; absent means all items"`
	Cursor string `query:"cursor" maxLength:"64" doc:"next_cursor of the previous page"`
}

func (p page) of() engi.Paging { return engi.Paging{Limit: p.Limit, After: p.Cursor} }

// paged is list with paging.
func paged[P interface{ of() engi.Paging }, X, T any](r Route, h func(*call, *P, engi.Paging) ([]X, error), as func(X) T, id func(T) string) Route {
	return fetch(r, func(c *call, in *P) (v1.List[T], error) {
		p := (*in).of()
		xs, err := h(c, in, p)
		if p.After != "" && engi.Is(err, engi.Invalid) {
			err = errCursor
		}
		all := listOf(xs, as)
		if n := len(all.Items); p.Limit > 0 && n == p.Limit {
			all.NextCursor = id(all.Items[n-1])
		}
		return all, err
	})
}

// paging is listing for paged.
func paging[S, X any](service S, of func(S, context.Context, engi.Viewer, engi.Paging) ([]X, error)) func(*call, *page, engi.Paging) ([]X, error) {
	return func(c *call, _ *page, p engi.Paging) ([]X, error) { return of(service, c, c.viewer(), p) }
}

func getting[S, X, T any, ID ~string](service S, get func(S, context.Context, engi.Viewer, ID) (X, error), as func(X) T) func(*call, *byID[ID]) (T, error) {
	return func(c *call, in *byID[ID]) (T, error) { return to(as)(get(service, c, c.viewer(), in.ID)) }
}

func ending[S any, ID ~string](service S, end func(S, context.Context, engi.Viewer, ID) error) func(*call, *byID[ID], none) error {
	return func(c *call, in *byID[ID], _ none) error { return end(service, c, c.viewer(), in.ID) }
}

// act returns a route that takes a B as JSON, or no body if B is none, and answers
// without a body.
func act[P, B any](r Route, h func(*call, *P, B) error) Route {
	r.Answers = []answer{{status: http.StatusNoContent}}
	return bind(r, func(c *call, p *P, b B) error {
		if err := h(c, p, b); err != nil {
			return err
		}
		c.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// raw returns a route whose function writes the answer itself.
func raw[P, B any](r Route, h func(*call, *P, B) error) Route { return bind(r, h) }

// to converts the result of a service, as in to(volumeOf)(volumes.Get(…)).
func to[X, T any](as func(X) T) func(X, error) (T, error) {
	return func(x X, err error) (T, error) {
		if err != nil {
			var zero T
			return zero, err
		}
		return as(x), nil
	}
}
