// Package scripts chooses the functions below api that a node's scripts get,
// by its configuration. Only package node uses it.
package scripts

import (
	"cmp"
	"net/http"
	"os"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/fetch"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/script"
)

// APIs returns the functions that scripts get. Wall may be nil; inSessions
// says whether scripts can be part of sessions.
func APIs(c config.Script, wall fetch.Wall, inSessions bool) ([]script.API, error) {
	private, err := fetch.ParseNetworks(c.FetchPrivate)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "script.fetch_private: %w", err)
	}
	client := func(hosts ...string) *http.Client {
		return fetch.New(fetch.Options{Hosts: hosts, Private: private, Remedy: "the operator lists hosts in script.fetch_hosts and private addresses in script.fetch_private of config.toml"})
	}
	of := func(host string) *http.Client { return client(host) }
	apis := script.KV()
	if inSessions {
		apis = append(apis, script.Sandbox()...)
	}
	add := func(a script.API, err error) error {
		apis = append(apis, a)
		return err
	}
	var outside *http.Client
	if len(c.FetchHosts) > 0 {
		outside = client(c.FetchHosts...)
	}
	var session func(engi.Owner, engi.NetworkPolicy) (*http.Client, error)
	if inSessions && wall != nil {
		session = func(owner engi.Owner, p engi.NetworkPolicy) (*http.Client, error) {
			return fetch.Through(wall, owner, p, fetch.Options{})
		}
	}
	if outside != nil || session != nil {
		apis = append(apis, script.Fetch(outside, session))
	}
	if c.Weather != "" && err == nil {
		service := c.Weather
		if service == "open-meteo" {
			service = script.WeatherURL
		}
		err = add(script.Weather(service, of))
	}
	for _, a := range c.APIs {
		if err != nil {
			return nil, err
		}
		headers := map[string]string{}
		for name, variable := range a.HeadersEnv {
			value, ok := os.LookupEnv(variable)
			if !ok {
				return nil, engi.Errorf(engi.Invalid, "script.apis %s: the environment has no %s", a.Name, variable).
					WithRemedy("set it, or take the header out of headers_env")
			}
			headers[name] = value
		}
		err = add(script.HTTPFunction{
			Name: a.Name, Description: cmp.Or(a.Description, "Asks "+a.URL), Signature: a.Signature, Method: a.Method, URL: a.URL, Headers: headers,
		}.API(of))
	}
	return apis, err
}
