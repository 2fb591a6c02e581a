// Updates the page with changed rows from the server's event stream, and shows when the stream is lost.
// Inserts received texts as text nodes and never parses HTML.
"use strict";
(() => {
  const screen = document.getElementById("screen"), state = document.getElementById("state");
  const token = location.hash.slice(1), form = document.getElementById("session");
  if (form) {
    // A link may carry the token after "#", which browsers never send. Removes it from the address, then submits it.
    if (token) {
      history.replaceState(null, "", location.pathname + location.search);
      form.elements.token.value = decodeURIComponent(token);
      form.submit();
    }
    return;
  }
  if (!screen) return;

  const tags = {t: "h1", h: "h2", n: "nav"}, groups = {c: "table", r: "table", i: "list"};
  let version = screen.dataset.version, source = null, heard = performance.now(), lost = 0, timer = 0;
  const news = new URL(location.href);
  news.hash = "";

  const make = (tag, attributes, content) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value) node.setAttribute(name, value);
    node.append(...content);
    return node;
  };
  const segment = ([text, classes, address]) => {
    if (!classes && !address) return text;
    const hidden = classes.split(" ").includes("x") ? "true" : "";
    return address
      ? make("a", {href: /^[/?]/.test(address) ? address : "", class: classes, "aria-hidden": hidden}, [text])
      : make("span", {class: classes, "aria-hidden": hidden}, [text]);
  };
  const row = ([kind, cells]) => {
    if (kind === "c" || kind === "r") {
      const role = kind === "c" ? "columnheader" : "cell";
      return make("div", {class: "l", role: "row"}, cells.map(cell => make("span", {role}, cell.map(segment))));
    }
    const attributes = {class: "l", role: kind === "i" ? "listitem" : "", "aria-label": kind === "n" ? "Processes" : ""};
    return make(tags[kind] || "div", attributes, cells.flat().map(segment));
  };
  const whole = rows => {
    const blocks = [];
    let group = null, kindOfGroup = "";
    for (const each of rows) {
      const wanted = groups[each[0]] || "";
      if (!wanted) { blocks.push(row(each)); group = null; kindOfGroup = ""; continue; }
      if (!group || wanted !== kindOfGroup || each[0] === "c") blocks.push(group = make("div", {role: wanted}, []));
      kindOfGroup = wanted;
      group.append(row(each));
    }
    screen.replaceChildren(...blocks);
  };
  const keepFocus = change => {
    const at = document.activeElement, address = screen.contains(at) && at.getAttribute("href");
    change();
    if (address && !at.isConnected)
      [...screen.querySelectorAll("a")].find(link => link.getAttribute("href") === address)?.focus({preventScroll: true});
  };

  const clock = () => new Date().toLocaleTimeString([], {hour12: false});
  const say = text => { if (state.textContent !== text) state.textContent = text; };
  const lose = () => {
    if (!lost) { lost = performance.now(); screen.classList.add("lost"); lose.since = clock(); }
    const seconds = Math.round((performance.now() - heard) / 1000);
    say(`LOST since ${lose.since}: the figures are ${seconds} s old; trying again`);
  };
  const hear = () => {
    heard = performance.now();
    lost = 0;
    screen.classList.remove("lost");
    say("");
  };

  const take = event => {
    const told = JSON.parse(event.data);
    hear();
    version = event.lastEventId;
    keepFocus(() => {
      if (told.whole) whole(told.whole);
      const lines = told.rows ? screen.querySelectorAll(".l") : [];
      for (const [number, each] of told.rows || []) lines[number].replaceWith(row(each));
    });
    if (told.title && document.title !== told.title) document.title = told.title;
  };
  const close = () => { if (source) source.close(); source = null; clearTimeout(timer); };
  const open = () => {
    close();
    news.searchParams.set("since", version);
    source = new EventSource(news);
    source.addEventListener("rows", take);
    source.addEventListener("beat", hear);
    source.addEventListener("error", () => source.readyState === EventSource.CLOSED ? ask() : lose());
  };
  // EventSource does not report why the server refused the stream, so asks for the status of the page.
  const ask = async () => {
    close();
    try {
      const answer = await fetch(location.href, {method: "HEAD"});
      if (answer.status === 401 || answer.status === 404) return location.reload();
      if (!answer.ok) throw answer.status;
      lost = 0;
      screen.classList.remove("lost");
      say("too many viewers: the figures are not updated; trying again");
    } catch { lose(); }
    timer = setTimeout(open, 3000);
  };

  const width = make("span", {}, ["0".repeat(100)]);
  const fit = () => {
    document.body.append(width);
    const room = (document.documentElement.clientWidth - 48) / (width.getBoundingClientRect().width / 100);
    width.remove();
    const columns = [240, 200, 160, 140, 120, 100, 80, 60].find(each => each <= room) || 60;
    if (screen.className.split(" ")[0] === `c${columns}`) return true;
    const there = new URL(location.href);
    there.searchParams.set("columns", columns);
    location.replace(there);
    return false;
  };

  if (!fit()) return;
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(fit, 300); });
  // Browsers limit the connections to a host, so a hidden tab closes its stream.
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  setInterval(() => {
    if (lost) lose();
    else if (source && performance.now() - heard > 25000) { lose(); open(); }
  }, 1000);
  open();
})();
