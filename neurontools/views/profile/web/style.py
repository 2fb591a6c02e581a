"""How the page looks, by light and by dark; colours that people tell apart who see few of them."""

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #59636e; --rule: #d1d9e0; --ground: #ffffff; --row: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #d8dee4; --dim: #8b949e; --rule: #3d444d; --ground: #0d1117; --row: #161b22; }
}
body { color: var(--text); background: var(--ground); font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1160px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); } .bad { color: #cf222e; } .warn { color: #9a6700; }
@media (prefers-color-scheme: dark) { .bad { color: #ff7b72; } .warn { color: #e3b341; } }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--dim); border-bottom: 1px solid var(--rule); }
td { text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th, td { padding: .15rem .5rem; } tr:hover td { background: var(--row); }
th.text, td.text { text-align: left; } td.wide { white-space: normal; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } figure { margin: .5rem 0; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; } svg text.dim { fill: var(--dim); }
svg .in { fill: #ffffff; font-size: 11px; } .grid { stroke: var(--rule); stroke-width: 1; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1rem 0; }
.facts div span { display: block; color: var(--dim); } .facts div b { font-size: 1.2rem; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.key svg { width: 12px; height: 12px; display: inline-block; }
.s0 { fill: #b58900; } .s1 { fill: #8c96a3; } .s2 { fill: #d1495b; } .s3 { fill: #4c86c6; } .s4 { fill: #2e8b57; }
.s5 { fill: #8e5ea2; }
.f0 { fill: #b4552d; } .f1 { fill: #a8651f; } .f2 { fill: #96731c; } .f3 { fill: #a04a4a; } .f4 { fill: #8a5a3c; }
.f5 { fill: #7d6608; } .backward { fill: #5b5ea6; } .lane { fill: var(--row); }
.cut { fill: var(--text); }
rect.frame { stroke: var(--ground); stroke-width: .6; }
"""
