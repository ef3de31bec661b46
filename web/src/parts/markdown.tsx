/**
 * What a model writes, as elements: marked reads it, and each of its tokens becomes an element of this list or text.
 * No HTML is ever made of it, images are not loaded, and links lead out only by the protocols of the web and mail.
 */
import { marked, type Token, type Tokens } from 'marked';
import type { ComponentChildren } from 'preact';
import { CopyButton } from './basics.tsx';

/** Long answers are read again with each token that comes. */
const parsed_max = 200_000;

export function Markdown({ text }: { text: string }) {
  if (text.length > parsed_max) return <div class="markdown plain-text">{text}</div>;
  return <div class="markdown">{blocks(marked.lexer(text, { gfm: true }))}</div>;
}

const blocks = (tokens: readonly Token[]): ComponentChildren => tokens.map((token, at) => block(token, at));
const inlines = (tokens: readonly Token[] | undefined, text: string): ComponentChildren =>
  tokens ? tokens.map((token, at) => inline(token, at)) : text;

function block(token: Token, key: number): ComponentChildren {
  switch (token.type) {
    case 'space':
    case 'def':
      return null;
    case 'heading':
      return (
        <p class={`heading depth-${(token as Tokens.Heading).depth}`} key={key}>
          {inlines(token.tokens, token.text)}
        </p>
      );
    case 'code':
      return <CodeBlock key={key} text={token.text as string} language={(token as Tokens.Code).lang} />;
    case 'blockquote':
      return <blockquote key={key}>{blocks(token.tokens ?? [])}</blockquote>;
    case 'list':
      return list(token as Tokens.List, key);
    case 'table':
      return table(token as Tokens.Table, key);
    case 'hr':
      return <hr key={key} />;
    case 'paragraph':
      return <p key={key}>{inlines(token.tokens, token.text)}</p>;
    case 'text':
      return token.tokens ? <span key={key}>{inlines(token.tokens, token.text)}</span> : token.text;
    // HTML and whatever else there is: as it was written.
    default:
      return <p key={key}>{token.raw}</p>;
  }
}

function list({ ordered, start, items }: Tokens.List, key: number): ComponentChildren {
  const entries = items.map((item, at) => (
    <li key={at}>
      {item.task && <input type="checkbox" checked={item.checked} disabled aria-label="task" />}
      {blocks(item.tokens)}
    </li>
  ));
  if (!ordered) return <ul key={key}>{entries}</ul>;
  return (
    <ol key={key} start={start === '' ? 1 : start}>
      {entries}
    </ol>
  );
}

function table({ header, rows }: Tokens.Table, key: number): ComponentChildren {
  return (
    <div class="table-scroll" key={key}>
      <table>
        <thead>
          <tr>
            {header.map((cell, at) => (
              <th key={at}>{inlines(cell.tokens, cell.text)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, line) => (
            <tr key={line}>
              {row.map((cell, at) => (
                <td key={at}>{inlines(cell.tokens, cell.text)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function CodeBlock({ text, language }: { text: string; language: string | undefined }) {
  return (
    <figure class="code-block">
      <figcaption>
        <span>{language?.split(/\s/)[0] || 'text'}</span>
        <CopyButton text={text} label="Copy the code" />
      </figcaption>
      <pre tabIndex={0}>
        <code>{text}</code>
      </pre>
    </figure>
  );
}

function inline(token: Token, key: number): ComponentChildren {
  switch (token.type) {
    case 'strong':
      return <strong key={key}>{inlines(token.tokens, token.text)}</strong>;
    case 'em':
      return <em key={key}>{inlines(token.tokens, token.text)}</em>;
    case 'del':
      return <del key={key}>{inlines(token.tokens, token.text)}</del>;
    case 'codespan':
      return <code key={key}>{token.text}</code>;
    case 'br':
      return <br key={key} />;
    case 'escape':
      return token.text;
    case 'text':
      return token.tokens ? inlines(token.tokens, token.text) : token.text;
    case 'link':
      return <Link key={key} href={(token as Tokens.Link).href} words={inlines(token.tokens, token.text)} />;
    case 'image':
      return (
        <Link
          key={key}
          href={(token as Tokens.Image).href}
          words={`image: ${token.text || 'without a name'}`}
        />
      );
    default:
      return token.raw;
  }
}

function Link({ href, words }: { href: string; words: ComponentChildren }) {
  if (!/^(https?|mailto):/i.test(href)) return <span>{words}</span>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>
      {words}
    </a>
  );
}
