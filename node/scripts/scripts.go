// Package scripts chooses the functions below api that a node's scripts get,
// by its configuration. Only package node uses it.
package scripts

import (
	"cmp"
	"os"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/script"
)

// APIs returns the functions that scripts get. Wall may be nil; inSessions
// says whether scripts can be part of sessions.
func APIs(c config.Script, wall script.Wall, inSessions bool) ([]script.API, error) {
	apis := script.KV()
	if inSessions {
		apis = append(apis, script.Sandbox()...)
	}
	add := func(a script.API, err error) error {
		apis = append(apis, a)
		return err
	}
	var err error
	if len(c.FetchHosts) > 0 || inSessions && wall != nil {
		err = add(script.Fetch(script.FetchPolicy{Hosts: c.FetchHosts, Private: c.FetchPrivate}, wall))
	}
	if c.Weather != "" && err == nil {
		service := c.Weather
		if service == "open-meteo" {
			service = script.WeatherURL
		}
		err = add(script.Weather(service, c.FetchPrivate))
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
		}.API(c.FetchPrivate))
	}
	return apis, err
}
