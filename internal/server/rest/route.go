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
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A Resource is one kind of object with its routes. Functions named for
// resources ([Volumes], [Sandboxes]) make them from the services that they
// need, and [New] serves them.
type Resource struct {
	tag, about string
	missing    error // why the node has none of it; nil if it does
	routes     []Route
}

// A Route is one operation of the surface: what it is called, who may use it,
// what goes in, what comes out, and the function that does it. Access control,
// the mux, the OpenAPI description, the reading of parameters and bodies,
// idempotency, and the tests that try every route all derive from this value.
type Route struct {
	Pattern string // method and path, as [http.ServeMux] has them
	ID      string // of the operation; empty keeps it out of the description
	Tag     string // empty means the resource's
	Summary string // one line
	Text    string // the rest; may be empty
	Access  Access
	Objects Objects

	// Creates says what a repeated Idempotency-Key does; empty if the route
	// takes none. See [once] and call.key.
	Creates string

	Status   int      // of success; 0 means 200, or 204 when nothing is answered
	Location string   // what the Location of an answer leads to; empty if it has none
	Example  any      // of the answer
	Answers  []answer // of a raw route: all of them; else those beside the first
	Optional bool     // the body may be left out
	Bodies   []example
	Uploads  []string // media types of a body that is not JSON, which the function reads
	Quiet    bool     // successes are logged for debugging only
	Password bool     // the key may be the password of basic authentication

	// Error is what clients of the dialect that the route speaks look for in an
	// error, as its member error; nil for none.
	Error func(v1.Problem) any

	missing error // why the node cannot serve it; nil if it can
	params  reflect.Type
	body    reflect.Type // nil if there is none, or it is not JSON
	reader  *params
	forms   []httpio.Format // what Accept chooses from; empty unless one of them is a stream
	serve   func(*call) error
}

// Access says who may use a route. The zero value admits every key.
type Access struct {
	Open  bool       // no key is needed
	Admin bool       // only an admin's key will do
	Scope engi.Scope // that a key must have; empty is what every key may do
	Write bool       // something may change by it
	Also  engi.Scope // that a key must have, too, if it is not empty
}

var (
	open      = Access{Open: true}
	anyKey    = Access{}
	adminOnly = Access{Admin: true, Write: true}
)

func reads(s engi.Scope) Access  { return Access{Scope: s} }
func writes(s engi.Scope) Access { return Access{Scope: s, Write: true} }

// Objects says whose objects a route is about, and so what call.owner is.
type Objects int

const (
	Viewed Objects = iota // the caller's; everybody's for an admin
	Owned                 // the caller's, an admin's too: what is made belongs to somebody
	Shared                // the node's, which everybody sees alike
)

// Allows reports Denied unless k is good for the route.
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

// An answer is one form that a response can have.
type answer struct {
	status  int
	media   string       // type of its body; empty if there is none
	of      reflect.Type // nil for bytes
	example any
	headers map[string]string // with what they mean
}

// jsonOf is an answer of a T.
func jsonOf[T any](status int, example any) answer {
	return answer{status: status, media: string(httpio.JSON), of: reflect.TypeFor[T](), example: example}
}

// bytesOf is an answer of bytes.
func bytesOf(status int, media string, headers map[string]string) answer {
	return answer{status: status, media: media, headers: headers}
}

// streamOf are answers of events, in the order of preference.
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

// An example is a request that works; tests send it.
type example struct{ name, summary, Body string }

// none is the type of parameters, bodies and answers that are not there.
type none struct{}

// bind gives a route its function.
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
		r.forms = nil // there is nothing to choose from
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

// send is a route that takes a B in JSON and answers with an R, or with
// nothing if R is none.
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

// create is a route that makes one object of a Q in JSON, with a fresh ID, and
// answers with it. The same request with the same Idempotency-Key is answered
// with what find returns.
func create[P, Q, X, T any, ID ~string](r Route, fresh func() ID, work func(*call, *P, ID, Q) (X, error), find func(*call, ID) (X, error), as func(X) T) Route {
	r.Status, r.Location, r.Objects = http.StatusCreated, cmp.Or(r.Location, "path of what was made"), Owned
	r.Creates = cmp.Or(r.Creates, "a repeated key returns what the first request made instead of making another")
	return send(r, func(c *call, in *P, q Q) (T, error) {
		id := string(fresh())
		x, err := once(c, q, creation[X]{
			ids: []string{id},
			work: func(ids []string) (X, error) {
				if len(ids) > 0 {
					id = ids[0]
				}
				return work(c, in, ID(id), q)
			},
			find: func(ids []string, _ bool) (X, error) {
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

// fetch is a route that takes no body and answers with an R.
func fetch[P, R any](r Route, h func(*call, *P) (R, error)) Route {
	return send(r, func(c *call, p *P, _ none) (R, error) { return h(c, p) })
}

// list is a route that answers with all of something.
func list[P, X, T any](r Route, h func(*call, *P) ([]X, error), as func(X) T) Route {
	return fetch(r, func(c *call, p *P) (v1.List[T], error) {
		xs, err := h(c, p)
		return listOf(xs, as), err
	})
}

// byID are the parameters of a route about one object.
type byID[ID ~string] struct {
	ID ID `path:"id" doc:"ID of the object"`
}

// listing, getting and ending are the functions of routes that list, get and end
// objects of the caller: list(…, listing(service, engi.Volumes.List), volumeOf). The
// service may be nil.
func listing[S, X any](service S, of func(S, context.Context, engi.Owner) ([]X, error)) func(*call, *none) ([]X, error) {
	return func(c *call, _ *none) ([]X, error) { return of(service, c, c.owner()) }
}

// A page are the parameters of lists that are whole unless one asks for pages.
type page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" doc:"Maximum number of items in a page; absent means all items"`
	Cursor string `query:"cursor" maxLength:"64" doc:"next_cursor of the previous page"`
}

func (p page) of() engi.Paging { return engi.Paging{Limit: p.Limit, After: p.Cursor} }

// paged is list with pages.
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
func paging[S, X any](service S, of func(S, context.Context, engi.Owner, engi.Paging) ([]X, error)) func(*call, *page, engi.Paging) ([]X, error) {
	return func(c *call, _ *page, p engi.Paging) ([]X, error) { return of(service, c, c.owner(), p) }
}

func getting[S, X, T any, ID ~string](service S, get func(S, context.Context, engi.Owner, ID) (X, error), as func(X) T) func(*call, *byID[ID]) (T, error) {
	return func(c *call, in *byID[ID]) (T, error) { return to(as)(get(service, c, c.owner(), in.ID)) }
}

func ending[S any, ID ~string](service S, end func(S, context.Context, engi.Owner, ID) error) func(*call, *byID[ID], none) error {
	return func(c *call, in *byID[ID], _ none) error { return end(service, c, c.owner(), in.ID) }
}

// act is a route that takes a B in JSON, or nothing if B is none, and answers
// with nothing.
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

// raw is a route whose function writes the answer itself.
func raw[P, B any](r Route, h func(*call, *P, B) error) Route { return bind(r, h) }

// to translates what a service returns: to(volumeOf)(volumes.Get(…)).
func to[X, T any](as func(X) T) func(X, error) (T, error) {
	return func(x X, err error) (T, error) {
		if err != nil {
			var zero T
			return zero, err
		}
		return as(x), nil
	}
}
