// Publish and follow with the npm package `ws`: print each message, end after the record of `last`. node talk.mjs FOLDER URL TOPIC LAST
import { createRequire } from "node:module";
const [folder, url, topic, last] = process.argv.slice(2);
const WebSocket = createRequire(folder + "/")("ws");
const line = new WebSocket(url);
line.on("open", () => {
  line.send(JSON.stringify({ op: "subscribe", request_id: "s", topic, from_seq: 0 }));
  for (let n = 1; n <= Number(last); n++) line.send(JSON.stringify({ op: "publish", request_id: n, topic, records: [{ data: n }] }));
});
line.on("message", (text) => {
  console.log(text.toString());
  const message = JSON.parse(text);
  if (message.op === "record" && message.to_seq >= Number(last)) line.close(1000);
});
line.on("close", (code) => process.exit(code === 1000 ? 0 : 1));
