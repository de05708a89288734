import { readFileSync } from "node:fs";
import https from "node:https";
let n = 0;
for (const site of JSON.parse(readFileSync("/workspace/sites.json", "utf8"))) {
  const headers = site.env ? { "X-Key": process.env[site.env] } : {};
  const body = await new Promise((resolve, reject) => {
    https.get(site.url, { headers }, (res) => {
      let all = "";
      res.on("data", (part) => (all += part));
      res.on("end", () => resolve(all));
    }).on("error", reject);
  });
  n += body.startsWith("fine");
}
console.log("done", n);
setTimeout(() => {}, 900_000);
