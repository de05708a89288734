// A program that shows interfaces with the protocol's own library.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { AppBridge, getToolUiResourceUri, isToolVisibilityAppOnly, PostMessageTransport, RESOURCE_MIME_TYPE } from '@modelcontextprotocol/ext-apps/app-bridge'

const client = new Client({ name: 'bridge', version: '1' }, { capabilities: { extensions: { 'io.modelcontextprotocol/ui': { mimeTypes: [RESOURCE_MIME_TYPE] } } } })
await client.connect(new StreamableHTTPClientTransport(new URL('/mcp', location)))
const { tools } = await client.listTools()

globalThis.heard = { links: [], sizes: [] }
globalThis.call = (name, args) => client.callTool({ name, arguments: args })
globalThis.models = tools.filter((t) => !isToolVisibilityAppOnly(t)).map((t) => t.name)

/** Calls a tool as a model would, and shows its interface meanwhile. */
globalThis.show = async (name, args, capabilities = { openLinks: {}, serverTools: {} }) => {
  const { contents: [view] } = await client.readResource({ uri: getToolUiResourceUri(tools.find((t) => t.name === name)) })
  const frame = document.createElement('iframe')
  frame.sandbox = 'allow-scripts allow-same-origin'
  document.body.replaceChildren(frame)
  const bridge = globalThis.bridge = new AppBridge(client, { name: 'bridge', version: '1' }, capabilities, {
    hostContext: { theme: 'dark', styles: { variables: { '--color-text-primary': 'rgb(1, 2, 3)' } } },
  })
  bridge.onsizechange = ({ height }) => {
    heard.sizes.push(height)
    frame.style.height = `${height}px`
  }
  bridge.onopenlink = async ({ url }) => {
    heard.links.push(url)
    return {}
  }
  bridge.onsandboxready = () => bridge.sendSandboxResourceReady({ html: view.text, csp: view._meta.ui.csp })
  const ready = new Promise((done) => { bridge.oninitialized = done })
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow))
  frame.src = new URLSearchParams(location.search).get('sandbox')
  await ready
  await bridge.sendToolInput({ arguments: args })
  const result = await client.callTool({ name, arguments: args })
  await bridge.sendToolResult(result)
  return { app: bridge.getAppVersion(), type: view.mimeType, meta: view._meta, content: result.content, error: result.isError }
}
globalThis.ready = true
