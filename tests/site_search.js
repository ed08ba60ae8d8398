// node site_search.js SITE: asks the search of a built site the queries on stdin (a JSON list), with
// the site's own worker; prints the addresses of what it finds for each, the best first.
const fs = require("fs")
const path = require("path")
const vm = require("vm")

const site = process.argv[2]
const folder = path.join(site, "assets/javascripts/workers")
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name))
const {config, docs} = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json")))
const queries = JSON.parse(fs.readFileSync(0))
const [SETUP, QUERY] = [0, 2]

let receive
let answered
global.self = global
global.addEventListener = (kind, listener) => { receive = listener }
global.postMessage = (message) => answered(message.data)
const ask = (type, data) => new Promise((done) => {
  answered = done
  receive({data: {type, data}})
})

vm.runInThisContext(fs.readFileSync(path.join(folder, worker), "utf8"))
ask(SETUP, {config, docs, options: {suggest: false}}).then(async () => {
  const found = []
  for (const query of queries) {
    const {items} = await ask(QUERY, query)
    found.push(items.map((group) => group[0].location))
  }
  console.log(JSON.stringify(found))
})
