"""Style sheet of all pages: light, dark and printed."""

STYLE = """
:root { color-scheme: light dark; --back: #fff; --front: #1c2330; --quiet: #5b6474; --line: #d5dae3; --card: #f5f7fa;
  --masked: #8a4b00; --masked-back: #fff0d6; --random: #8a1c5c; --random-back: #fde7f3; --kept: #0b5a6b; --kept-back: #dff4f8;
  --shuffled: #4632a0; --shuffled-back: #ece8fb;
  --c0: #7a5ccc; --c1: #2f6fd6; --c2: #1f8a55; --c3: #c2571a; }
@media (prefers-color-scheme: dark) { :root { --back: #14181f; --front: #e4e8ef; --quiet: #9aa4b5; --line: #343c4a;
  --card: #1d232d; --masked: #ffc368; --masked-back: #3d2c10;
  --random: #ff9ccf; --random-back: #421a31; --kept: #7fdcec; --kept-back: #0f343c; --shuffled: #b9adff; --shuffled-back: #2a2352;
  --c0: #a78bfa; --c1: #6ea8fe; --c2: #5fd39b; --c3: #f79a5e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 1.5rem; background: var(--back); color: var(--front);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; } h3 { font-size: .95rem; margin: 0; }
h2 small, h3 small, .note, .card small, figcaption, dt { color: var(--quiet); font-weight: normal; font-size: .85rem; }
.about { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; margin: 0; } .about dd { margin: 0; overflow-wrap: anywhere; }
.about div { display: flex; gap: .4rem; align-items: baseline; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: .6rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .5rem .7rem;
  overflow-wrap: anywhere; }
.card b { display: block; font-size: 1.25rem; } .card small { display: block; line-height: 1.3; }
figure { margin: 1.2rem 0 0; } svg { width: 100%; max-width: 46rem; height: auto; display: block; }
svg rect { fill: var(--c1); } svg line { stroke: var(--line); }
svg text { fill: var(--front); font-size: 12px; text-anchor: middle; } svg .axis { fill: var(--quiet); }
article { border-inline-start: 4px solid var(--c1); padding: .1rem 0 .1rem .8rem; margin: .8rem 0; }
.c0 { border-color: var(--c0); } .c1 { border-color: var(--c1); } .c2 { border-color: var(--c2); }
.c3 { border-color: var(--c3); }
.text { margin: .3rem 0; overflow-wrap: anywhere; }
.tokens { margin: .3rem 0; line-height: 1.35; }
.tokens .note { margin-inline-end: 1.5rem; }
.t { display: inline-block; vertical-align: middle; margin: .15rem .12rem; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: isolate; font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .85rem; }
.p { text-align: center; border: 1px solid; border-radius: 5px; padding: .05rem .35rem; }
.p span, .p b, .p small { display: block; } .p small { font: .68rem/1.2 system-ui, sans-serif; }
.p b { font-weight: normal; border-top: 1px dotted; } .p span { font-weight: bold; }
.masked { color: var(--masked); background: var(--masked-back); }
.random { color: var(--random); background: var(--random-back); border-style: dashed; }
.kept { color: var(--kept); background: var(--kept-back); border-style: double; }
.shuffled, .permuted, .paired { color: var(--shuffled); background: var(--shuffled-back); border-style: dotted; }
.type { display: inline-block; vertical-align: middle; background: var(--quiet); color: var(--back); border-radius: 3px;
  padding: 0 .35rem; margin: 0 .2rem; font-size: .75rem; font-weight: bold; }
.padding { color: var(--quiet); border: 1px solid var(--line); border-radius: 4px; padding: .1rem .6rem; font-size: .85rem;
  background: repeating-linear-gradient(135deg, transparent 0 6px, var(--card) 6px 12px); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { border: 1px solid var(--line); padding: .2rem .6rem;
  text-align: start; overflow-wrap: break-word; } th { background: var(--card); } svg circle { fill: var(--c1); opacity: .75; }
svg .mean { stroke: var(--c3); stroke-width: 3; } svg .name { text-anchor: end; }
@media print { :root { --back: #fff; --front: #000; --quiet: #444; --line: #999; --card: #fff;
  --masked: #6b3a00; --masked-back: #fff; --random: #6d1247; --random-back: #fff; --kept: #064552; --kept-back: #fff;
  --shuffled: #33237c; --shuffled-back: #fff; }
  body { padding: 0; max-width: none; font-size: 11px; } .t, .card, h2, figure { break-inside: avoid; }
  h2, h3 { break-after: avoid; } }
"""
