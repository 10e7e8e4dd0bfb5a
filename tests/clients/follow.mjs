// Follow a watch session with the npm package `eventsource`: print a line a record, end after `last`. node follow.mjs FOLDER URL LAST
import { createRequire } from "node:module";
const [folder, url, last] = process.argv.slice(2);
const { EventSource } = createRequire(folder + "/")("eventsource");
const source = new EventSource(url);
source.addEventListener("caught-up", () => console.log(JSON.stringify({ event: "caught-up" })));
source.addEventListener("tombstone", (event) => console.log(JSON.stringify({ event: "tombstone", ...JSON.parse(event.data) })));
source.addEventListener("record", (event) => {
  for (const record of JSON.parse(event.data).records) {
    console.log(JSON.stringify({ event: "record", seq: record.$seq, data: record.data, id: event.lastEventId !== "" }));
    if (record.$seq >= Number(last)) process.exit(0);
  }
});
