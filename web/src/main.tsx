import { render } from 'preact';
import { App } from './app.tsx';
import './style/base.css';
import './style/shell.css';
import './style/parts.css';
import './style/pages.css';
import './style/chat.css';

render(<App />, document.getElementById('app')!);
