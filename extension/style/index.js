import './base.css';
import './dialog.css';
import './logs.css';
